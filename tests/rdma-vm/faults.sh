#!/usr/bin/env bash
# What must hold over RDMA while cables are cut, devices are taken away and peers are killed. In the
# virtual machine, whose cables and devices are there for that:
#
#   tests/rdma-vm/rdma-vm run -- tests/rdma-vm/faults.sh FAULTS [FILTER]
#
# FAULTS is the test program named rdma, FILTER what it takes. It waits for minutes, and computes
# for one.
set -euo pipefail

echo "== devices that the kernel knows"
grep -H . /sys/class/infiniband/*/ports/1/state
# Not `! grep`: a negated command never ends a script.
if grep -Lw ACTIVE /sys/class/infiniband/*/ports/1/state | grep .; then
    exit 1
fi
test -n "$RDMA_VM"

echo "== cut cables, killed peers"
"$@" --test-threads 1
echo "== all of it holds"
