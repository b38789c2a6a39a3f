#!/bin/sh
# ffi/build.sh PACKAGE: build a library that others will use, as cargo build --release does, but
# without this machine's paths in it, which panics and debuggers would show.
set -eu

root=$(cd "$(dirname "$0")/.." && pwd -P)
sysroot=$(rustc --print sysroot)
set -- --package "$1" \
    "--remap-path-prefix=$root=/brigade" \
    "--remap-path-prefix=${CARGO_HOME:-$HOME/.cargo}=/cargo" \
    "--remap-path-prefix=$sysroot/lib/rustlib/src/rust=/rustc"
# Cargo takes flags from one source only, so ours go into that which the user has. Where it is
# target.*.rustflags of a configuration file, those stay and ours are not taken.
separator=$(printf '\037')
if [ -n "${CARGO_ENCODED_RUSTFLAGS:-}" ]; then
    export CARGO_ENCODED_RUSTFLAGS="$CARGO_ENCODED_RUSTFLAGS$separator$3$separator$4$separator$5"
elif [ -n "${RUSTFLAGS:-}" ]; then
    # Split at spaces, as cargo does; our paths may have some.
    flags=$(printf "%s$separator" $RUSTFLAGS)
    export CARGO_ENCODED_RUSTFLAGS="$flags$3$separator$4$separator$5"
else
    exec cargo build --release --config "build.rustflags=['$3', '$4', '$5']" "$1" "$2"
fi
exec cargo build --release "$1" "$2"
