#!/bin/busybox sh
# The guest's first process, up to the moment when it can take a job. Nothing here depends on the
# job, so a snapshot of this moment serves every later run.
export PATH=/bin
/bin/busybox mkdir -p /proc /sys /dev /run /tmp /host /layer /writes /new
/bin/busybox --install -s /bin
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
mkdir -p /dev/pts /dev/shm
mount -t devpts pts /dev/pts
mount -t tmpfs -o mode=1777 shm /dev/shm
mount -t tmpfs -o mode=755 run /run
mount -t cgroup2 cgroup /sys/fs/cgroup
ln -s /proc/self/fd /dev/fd
ln -s fd/0 /dev/stdin
ln -s fd/1 /dev/stdout
ln -s fd/2 /dev/stderr
hostname rdma-vm

while read -r module; do
    insmod "/modules/$module.ko" || echo "rdma-vm: module $module did not load"
done </modules/order

# Both ends of the cable lie in this one machine: each must take packets whose sender's address is
# one of the machine's own.
for where in all default; do
    echo 1 >/proc/sys/net/ipv4/conf/$where/accept_local
    echo 0 >/proc/sys/net/ipv4/conf/$where/rp_filter
done

# The programs that make the devices lie on the host. They are let go again: QEMU takes no snapshot
# while a folder of the host is mounted.
MOUNT_9P="trans=virtio,version=9p2000.L,msize=524288"
mount -t 9p -o "$MOUNT_9P,ro,cache=loose" layer /layer
chroot /layer /rdma-vm/bin/cable make || echo "rdma-vm: the devices could not be made"
umount /layer

# Processors come up last: an emulated kernel that patches its own text while several run has been
# seen to fall over.
for processor in /sys/devices/system/cpu/cpu[1-9]*/online; do
    [ ! -e "$processor" ] || echo 1 >"$processor"
done

port() {
    for place in /sys/class/virtio-ports/*; do
        [ "$(cat "$place/name")" != "$1" ] || echo "/dev/${place##*/}"
    done
}
exec 8<>"$(port control)" 5>"$(port out)" 6>"$(port err)"
echo READY >&8

# The job's length in bytes, then the job: variables only, no commands.
read -r length <&8
head -c "$length" <&8 >/job.variables
. /job.variables
. /job.sh
