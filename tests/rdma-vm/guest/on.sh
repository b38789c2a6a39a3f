#!/rdma-vm/bin/sh
# on N COMMAND...   Run COMMAND as if on host N (0 or 1): with a host name, /dev/shm, System V
# memory and process numbers of its own, so that ranks on two hosts cannot meet in shared memory.
# RDMA_VM_HOST, RDMA_VM_DEVICE and RDMA_VM_ADDRESS say which host, device and address it is. The
# network is shared: soft-RoCE works in the first network namespace only.
set -e
export RDMA_VM_HOST="$1"
shift
kind=rxe
[ ! -e /run/rdma-vm.kind ] || kind=$(cat /run/rdma-vm.kind)
export RDMA_VM_DEVICE="$kind$RDMA_VM_HOST"
export RDMA_VM_ADDRESS="10.77.0.$((RDMA_VM_HOST + 1))"
shm=/run/shm$RDMA_VM_HOST
if ! /rdma-vm/bin/busybox mountpoint -q "$shm" 2>/dev/null; then
    /rdma-vm/bin/busybox mkdir -p "$shm"
    /rdma-vm/bin/busybox mount -t tmpfs -o mode=1777 shm "$shm"
fi
exec /rdma-vm/bin/unshare -m -u -i -p -f --mount-proc /rdma-vm/bin/sh -c '
    /rdma-vm/bin/busybox hostname "host$RDMA_VM_HOST"
    /rdma-vm/bin/busybox mount --bind "/run/shm$RDMA_VM_HOST" /dev/shm
    "$@"
    exit $?' on "$@"
