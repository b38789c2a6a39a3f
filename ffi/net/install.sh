#!/bin/sh
# Install the network plugin under the name by which NCCL looks for it.
set -eu

usage() {
    cat <<'END'
usage: ffi/net/install.sh [--libdir DIR] [--from DIR]
  --libdir DIR   where libraries go (default /usr/local/lib)
  --from DIR     take libnccl_net_brigade.so from here (default: cargo builds it)
END
}

ffi=$(dirname "$0")/..
. "$ffi/installing.sh"
libdir=/usr/local/lib from=
take_flags "--libdir --from" "$@"
libdir=$(absolute "$libdir")
from=$(absolute "$from")
[ -n "$from" ] || build brigade-net
mkdir -p "$libdir"
plugin=$libdir/libnccl-net-brigade.so
put "$from/libnccl_net_brigade.so" "$plugin"
echo "NCCL finds $plugin ($(megabytes "$plugin")) with NCCL_NET_PLUGIN=brigade and this folder in" \
    "LD_LIBRARY_PATH"
