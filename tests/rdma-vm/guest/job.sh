# One job, in the guest: `init.sh` reads this with the job's variables set. They are NOW (seconds
# since 1970), SEED, MTU, SHAPE (arguments of netem), DOWN_AFTER and DOWN_FOR (seconds), OUT (a
# folder), NVME_QUEUES, SIW (a module's path on the host) and COMMAND (a script).
fail() {
    echo "FAIL $*" >&8
    sleep 60
}
in_new() {
    chroot /new /rdma-vm/bin/"$@"
}

date -s "@$NOW" >/dev/null
echo "$SEED" >/dev/urandom

# The host's file system, under it the layer, over it what the job writes.
mount -t 9p -o "$MOUNT_9P,ro,cache=loose,noxattr" host /host || fail "the host's files: no mount"
mount -t 9p -o "$MOUNT_9P,ro,cache=loose,noxattr" layer /layer || fail "the layer: no mount"
mount -t tmpfs -o size=100% writes /writes
mkdir /writes/upper /writes/work
mount -t overlay -o lowerdir=/host:/layer,upperdir=/writes/upper,workdir=/writes/work \
    overlay /new ||
    fail "the overlay: no mount"
for folder in proc sys dev run; do
    mkdir -p /new/$folder
    mount --rbind /$folder /new/$folder
done
mkdir -p /new/tmp /new/var/tmp
chmod 1777 /new/tmp /new/var/tmp
if [ -n "$OUT" ]; then
    mkdir -p "/new$OUT"
    mount -t 9p -o "$MOUNT_9P,cache=mmap" out "/new$OUT" || fail "the folder $OUT: no mount"
fi

# The kernel asks for modules by itself; they lie in the new root.
printf '#!/bin/sh\nexec chroot /new /rdma-vm/bin/modprobe "$@"\n' >/bin/ask-for-module
chmod 755 /bin/ask-for-module
echo /bin/ask-for-module >/proc/sys/kernel/modprobe

if [ -n "$SIW" ]; then
    in_new modprobe libcrc32c
    insmod "/new$SIW" || fail "siw: the module did not load"
    in_new cable type siw || fail "siw: no devices"
fi
[ "$MTU" = 4200 ] || in_new cable mtu "$MTU" || fail "MTU $MTU was refused"
# The words of SHAPE are arguments.
[ -z "$SHAPE" ] || in_new cable shape $SHAPE || fail "netem refused: $SHAPE"
if [ -n "$NVME_QUEUES" ]; then
    in_new modprobe nvme "poll_queues=$NVME_QUEUES" || fail "the NVMe driver did not load"
    for _ in $(seq 100); do
        [ ! -b /dev/nvme0n1 ] || break
        sleep 0.1
    done
    [ -b /dev/nvme0n1 ] || fail "no NVMe drive came up"
fi

# Bytes are counted on their way out, so that the host knows when it has had all of them.
mkfifo /out /err /out.copy /err.copy
tee /out.copy </out >&5 &
tee /err.copy </err >&6 &
wc -c </out.copy >/out.count &
out_counter=$!
wc -c </err.copy >/err.count &
err_counter=$!
printf '%s' "$COMMAND" >/new/run/command.sh
if [ -n "$DOWN_AFTER" ]; then
    (
        sleep "$DOWN_AFTER"
        in_new cable down
        [ -z "$DOWN_FOR" ] || { sleep "$DOWN_FOR"; in_new cable up; }
    ) >/dev/null 2>&1 &
fi
# In a process namespace of its own, so that nothing that the command leaves behind outlives it. The
# shell between is its first process: a command that were would not die of its own signals.
in_new unshare -m -p -f --mount-proc /rdma-vm/bin/sh -c \
    '/rdma-vm/bin/sh /run/command.sh; exit $?' >/out 2>/err </dev/null 5>&- 6>&- 8>&-
status=$?
wait $out_counter $err_counter
sync
echo "EXIT $status $(cat /out.count) $(cat /err.count)" >&8
sleep 1000
