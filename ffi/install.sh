#!/bin/sh
# Install libbrigade for C: shared and static library, headers, pkg-config and CMake files.
set -eu

usage() {
    cat <<'END'
usage: ffi/install.sh [--prefix DIR] [--libdir DIR] [--destdir DIR] [--from DIR]
  --prefix DIR   where it will be used (default /usr/local)
  --libdir DIR   where libraries go (default PREFIX/lib)
  --destdir DIR  put in front of all of it while installing, for those who make packages
  --from DIR     take libbrigade.so and .a from here (default: build.sh builds them)
END
}

prefix=/usr/local libdir= destdir= from=
while [ $# -gt 0 ]; do
    case "$1" in
        --prefix | --libdir | --destdir | --from)
            if [ -z "${2:-}" ]; then
                echo "$0: $1 needs a value" >&2
                usage >&2
                exit 2
            fi ;;
    esac
    case "$1" in
        --prefix) prefix=$2 ;;
        --libdir) libdir=$2 ;;
        --destdir) destdir=$2 ;;
        --from) from=$2 ;;
        *) usage; [ "$1" = --help ] && exit 0 || exit 2 ;;
    esac
    shift 2
done
# Paths are those of whoever calls, and those that are written into files hold anywhere.
case "$prefix" in /*) ;; *) prefix=$PWD/$prefix ;; esac
case "$libdir" in '' | /*) ;; *) libdir=$PWD/$libdir ;; esac
case "$destdir" in '' | /*) ;; *) destdir=$PWD/$destdir ;; esac
case "$from" in '' | /*) ;; *) from=$PWD/$from ;; esac
libdir=${libdir:-$prefix/lib}
includedir=$prefix/include

here=$(cd "$(dirname "$0")" && pwd)
cd "$here"
version=$(sed -n 's/^version = "\(.*\)"/\1/p' ../Cargo.toml | head -n 1)
if [ -z "$from" ]; then
    ./build.sh brigade-ffi
    from=${CARGO_TARGET_DIR:-../target}/release
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
install -m 755 "$from/libbrigade.so" "$lib/libbrigade.so.$version"
ln -sf "libbrigade.so.$version" "$lib/libbrigade.so.0"
ln -sf libbrigade.so.0 "$lib/libbrigade.so"
install -m 644 "$from/libbrigade.a" "$lib/libbrigade.a"
fill brigade.pc.in > "$lib/pkgconfig/brigade.pc"
fill brigadeConfig.cmake.in > "$lib/cmake/brigade/brigadeConfig.cmake"
fill brigadeConfigVersion.cmake.in > "$lib/cmake/brigade/brigadeConfigVersion.cmake"
echo "libbrigade $version is in $lib; to find it there:"
echo "  export PKG_CONFIG_PATH=$lib/pkgconfig LD_LIBRARY_PATH=$lib"
