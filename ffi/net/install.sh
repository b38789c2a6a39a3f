#!/bin/sh
# Install the network plugin under the name by which NCCL looks for it.
set -eu

usage() {
    cat <<'END'
usage: ffi/net/install.sh [--libdir DIR] [--from DIR]
  --libdir DIR   where libraries go (default /usr/local/lib)
  --from DIR     take libnccl_net_brigade.so from here (default: ffi/build.sh builds it)
END
}

libdir=/usr/local/lib from=
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
    ../build.sh brigade-net
    from=${CARGO_TARGET_DIR:-../../target}/release
fi
mkdir -p "$libdir"
install -m 755 "$from/libnccl_net_brigade.so" "$libdir/libnccl-net-brigade.so"
echo "NCCL finds $libdir/libnccl-net-brigade.so with NCCL_NET_PLUGIN=brigade and this folder in LD_LIBRARY_PATH"
