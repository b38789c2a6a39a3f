#!/bin/sh
# Install the library with NCCL's names, in a folder of its own: whoever wants it instead of NCCL
# puts that folder into LD_LIBRARY_PATH.
set -eu

usage() {
    cat <<'END'
usage: ffi/nccl/install.sh [--libdir DIR] [--from DIR]
  --libdir DIR   where the library goes (default /usr/local/lib/brigade-nccl)
  --from DIR     take libbrigade_nccl.so from here (default: ffi/build.sh builds it)
END
}

libdir=/usr/local/lib/brigade-nccl from=
while [ $# -gt 0 ]; do
    case "$1" in
        --libdir | --from)
            if [ -z "${2:-}" ]; then
                echo "$0: $1 needs a value" >&2
                usage >&2
                exit 2
            fi ;;
    esac
    case "$1" in
        --libdir) libdir=$2 ;;
        --from) from=$2 ;;
        *) usage; [ "$1" = --help ] && exit 0 || exit 2 ;;
    esac
    shift 2
done

# Paths are those of whoever calls.
case "$libdir" in /*) ;; *) libdir=$PWD/$libdir ;; esac
case "$from" in '' | /*) ;; *) from=$PWD/$from ;; esac
cd "$(dirname "$0")"
if [ -z "$from" ]; then
    ../build.sh brigade-nccl
    from=${CARGO_TARGET_DIR:-../../target}/release
fi
mkdir -p "$libdir"
install -m 755 "$from/libbrigade_nccl.so" "$libdir/libbrigade_nccl.so"
ln -sf libbrigade_nccl.so "$libdir/libnccl.so.2"
ln -sf libnccl.so.2 "$libdir/libnccl.so"
echo "programs for NCCL run without it with LD_LIBRARY_PATH=$libdir"
