#!/bin/sh
# Install libbrigade for C: shared and static library, headers, pkg-config and CMake files.
set -eu

usage() {
    cat <<'END'
usage: ffi/install.sh [--prefix DIR] [--libdir DIR] [--destdir DIR] [--from DIR]
  --prefix DIR   where it will be used (default /usr/local)
  --libdir DIR   where libraries go (default PREFIX/lib)
  --destdir DIR  put in front of all of it while installing, for those who make packages
  --from DIR     take libbrigade.so and .a from here (default: cargo builds them, and with
                 --destdir build.sh, without this machine's paths in them)
END
}

ffi=$(dirname "$0")
. "$ffi/installing.sh"
prefix=/usr/local libdir= destdir= from=
take_flags "--prefix --libdir --destdir --from" "$@"
# What is written into files holds anywhere.
prefix=$(absolute "$prefix")
libdir=$(absolute "${libdir:-$prefix/lib}")
destdir=$(absolute "$destdir")
from=$(absolute "$from")
includedir=$prefix/include

cd "$root/ffi"
version=$(sed -n 's/^version = "\(.*\)"/\1/p' ../Cargo.toml | head -n 1)
if [ -z "$from" ] && [ -n "$destdir" ]; then
    # For other machines, which shall not read of the paths of this one.
    ./build.sh brigade-ffi
    from=${CARGO_TARGET_DIR:-../target}/release
elif [ -z "$from" ]; then
    build brigade-ffi
fi
# What rustc --print native-static-libs says, less what every compiler links by itself: which of its
# own libraries that is depends on -static. What has been in libc for long is named for older ones.
static_libs='-lpthread -lrt -ldl -lm'

fill() {
    sed -e "s|@PREFIX@|$prefix|g" -e "s|@LIBDIR@|$libdir|g" -e "s|@INCLUDEDIR@|$includedir|g" \
        -e "s|@VERSION@|$version|g" -e "s|@STATIC_LIBS@|$static_libs|g" "$1"
}

lib=$destdir$libdir
mkdir -p "$lib/pkgconfig" "$lib/cmake/brigade" "$destdir$includedir"
install -m 644 ../include/brigade.h ../include/brigade*.hpp "$destdir$includedir/"
put "$from/libbrigade.so" "$lib/libbrigade.so.$version"
ln -sf "libbrigade.so.$version" "$lib/libbrigade.so.0"
ln -sf libbrigade.so.0 "$lib/libbrigade.so"
install -m 644 "$from/libbrigade.a" "$lib/libbrigade.a"
fill brigade.pc.in > "$lib/pkgconfig/brigade.pc"
fill brigadeConfig.cmake.in > "$lib/cmake/brigade/brigadeConfig.cmake"
fill brigadeConfigVersion.cmake.in > "$lib/cmake/brigade/brigadeConfigVersion.cmake"
echo "libbrigade $version ($(megabytes "$lib/libbrigade.so.$version")) is in $lib; to find it there:"
echo "  export PKG_CONFIG_PATH=$lib/pkgconfig LD_LIBRARY_PATH=$lib"
