#!/bin/sh
# Install the library with NCCL's names, in a folder of its own: whoever wants it instead of NCCL
# puts that folder into LD_LIBRARY_PATH.
set -eu

usage() {
    cat <<'END'
usage: ffi/nccl/install.sh [--libdir DIR] [--from DIR]
  --libdir DIR   where the library goes (default /usr/local/lib/brigade-nccl)
  --from DIR     take libbrigade_nccl.so from here (default: cargo builds it)
END
}

ffi=$(dirname "$0")/..
. "$ffi/installing.sh"
libdir=/usr/local/lib/brigade-nccl from=
take_flags "--libdir --from" "$@"
libdir=$(absolute "$libdir")
from=$(absolute "$from")
[ -n "$from" ] || build brigade-nccl
mkdir -p "$libdir"
put "$from/libbrigade_nccl.so" "$libdir/libbrigade_nccl.so"
ln -sf libbrigade_nccl.so "$libdir/libnccl.so.2"
ln -sf libnccl.so.2 "$libdir/libnccl.so"
echo "programs for NCCL run without it with LD_LIBRARY_PATH=$libdir" \
    "($(megabytes "$libdir/libbrigade_nccl.so"))"
