#!/usr/bin/env bash
# What must hold over RDMA. Run it in the virtual machine, or on a machine with devices of its own:
#
#   tests/rdma-vm/rdma-vm run -- tests/rdma-vm/floor.sh BRIGADE CONFORMANCE
#
# BRIGADE is the command, CONFORMANCE the test program of that name. Emulated devices and processors
# are slow: the sizes are small, and nothing here judges speed. Faults are in faults.sh.
set -euo pipefail

KINDS="all-reduce,reduce-scatter,all-gather,broadcast,reduce,all-to-all,gather,scatter,barrier"
KINDS="$KINDS,send-recv,all-gather-v,reduce-scatter-v,all-to-all-v,gather-v,scatter-v"
BRIGADE=$1
CONFORMANCE=$2
BEGIN=$SECONDS

say() {
    echo "== $* (after $((SECONDS - BEGIN)) s)"
}

say "devices that the kernel knows"
grep -H . /sys/class/infiniband/*/ports/1/state
# Not `! grep`: a negated command never ends a script.
if grep -Lw ACTIVE /sys/class/infiniband/*/ports/1/state | grep .; then
    exit 1
fi

say "the transport finds them"
"$BRIGADE" doctor | grep -A 4 '^  . rdma  *yes'

say "conformance"
"$CONFORMANCE" rdma --test-threads 1

# Ranks that start take seconds of an emulated processor: once there, they do all collectives.
for ranks in 2 3 4; do
    say "all collectives, $ranks ranks"
    "$BRIGADE" bench "$KINDS" -n "$ranks" --transport rdma \
        -b 1 -e 256K -f 64 --iters 1 --warmup 1 --check
done
say "all-reduce up to 16 MiB"
"$BRIGADE" bench all-reduce -n 2 --transport rdma -b 1M -e 16M -f 4 --iters 1 --warmup 1 --check

# Elsewhere the cable is not ours to cut.
if [ -n "${RDMA_VM:-}" ]; then
    say "a link that goes down and comes up again, five times, under an all-reduce"
    packets=/sys/class/infiniband/rxe0/ports/1/hw_counters/sent_pkts
    before=$(cat $packets)
    "$BRIGADE" bench all-reduce -n 2 --transport rdma -b 1M -e 1M --iters 100 --warmup 1 --check &
    job=$!
    while kill -0 $job && [ "$(cat $packets)" -lt $((before + 1000)) ]; do
        sleep 0.1
    done
    for flap in 1 2 3 4 5; do
        kill -0 $job 2>/dev/null || break
        cable down
        sleep 0.3
        cable up
        echo "flap $flap"
        sleep 1
    done
    wait $job
fi

say "training: the same digits over rdma as over shared memory"
digits() {
    "$BRIGADE" train --ranks 2 --steps 3 --layers 1 --width 32 --context 16 --batch 8 --sample 0 --held-out 0 \
        --ordered --quiet --transport "$1" | grep -o 'loss [0-9.]*'
}
far=$(digits rdma)
near=$(digits shm)
printf 'rdma:\n%s\nshm:\n%s\n' "$far" "$near"
test -n "$far"
test "$far" = "$near"
say "all of it holds"
