"""One command in a guest: boot or restore, hand over the job, stream output, pass its status."""

import os
import re
import select
import shlex
import time

import siw
from machine import Machine
from report import STATUS_TIMEOUT, Damaged, GuestLost, detail, say

BOOT_SECONDS_MAX = 120
BOOTS_MAX = 3
# Variables of the host's shell that would be wrong in the guest.
NOT_PASSED = ("_", "OLDPWD", "SHLVL", "PWD")
OWN_FOLDERS = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:/rdma-vm/bin"
DEFAULT_MTU = 4200


class Job:
    """A command, and what happens to the cable while it runs."""

    def __init__(self, options):
        self.command = options.command
        self.timeout_s = options.timeout
        self.mtu = options.mtu
        self.loss_percent = options.loss
        self.delay_ms = options.delay
        self.link_down = options.link_down
        self.out = options.out
        self.uses_siw = options.siw

    def script(self, shape, cache, apt):
        """The job as the guest reads it: lines `NAME=value`, quoted for its shell."""
        shaping = []
        if self.loss_percent:
            shaping += ["loss", f"{self.loss_percent}%"]
        if self.delay_ms:
            shaping += ["delay", f"{self.delay_ms}ms"]
        down_after, down_for = self.link_down or ("", "")
        variables = {
            "NOW": int(time.time()),
            "SEED": os.urandom(32).hex(),
            "MTU": self.mtu,
            "SHAPE": " ".join(shaping),
            "DOWN_AFTER": down_after,
            "DOWN_FOR": down_for,
            "OUT": self.out or "",
            "NVME_QUEUES": shape.cpus if shape.nvme_bytes is not None else "",
            "SIW": siw.module(cache, apt) if self.uses_siw else "",
            "COMMAND": self._command(),
        }
        lines = [f"{name}={shlex.quote(str(value))}\n" for name, value in variables.items()]
        return "".join(lines).encode(errors="surrogateescape")

    def _command(self):
        inherited = {name: value for name, value in os.environ.items()
                     if re.fullmatch(r"[A-Za-z_]\w*", name) and name not in NOT_PASSED}
        path = inherited.get("PATH", "")
        environment = {**inherited, "PATH": f"{path}:{OWN_FOLDERS}".lstrip(":"), "RDMA_VM": "1"}
        words = [f"{name}={value}" for name, value in environment.items()] + self.command
        return (f"cd {shlex.quote(os.getcwd())} || exit 126\n"
                "ulimit -l unlimited; ulimit -n 65536; ulimit -c 0\n"
                # Not busybox's, which would take its own programs for those of the same name.
                f"exec /usr/bin/env -i {shlex.join(words)}\n")


def run(job, shape, cache, apt, use_snapshot=True):
    """Run the job's command in a guest of this shape; returns the command's status."""
    script = job.script(shape, cache, apt)
    for attempt in range(1, BOOTS_MAX + 1):
        try:
            machine = _guest(shape, cache, job.out, use_snapshot)
        except GuestLost as error:
            # Rare: an emulated kernel that patches its own text can fall over while it comes up.
            if attempt == BOOTS_MAX:
                raise
            detail(f"attempt {attempt}: {error}")
            continue
        with machine:
            return _converse(machine, script, job.timeout_s)


def _guest(shape, cache, out, use_snapshot):
    """A guest that is ready for its job: from a snapshot where there is one, else booted."""
    deadline = time.monotonic() + BOOT_SECONDS_MAX
    may_restore = use_snapshot and shape.can_be_restored
    path, is_there = cache.snapshot(shape.snapshot_name(cache.folder))
    if may_restore and is_there:
        try:
            return _restored(shape, cache, out, path, deadline)
        except (GuestLost, OSError) as error:
            detail(f"the snapshot is of no use, a boot follows: {error}")
            cache.drop_snapshot(path)
    machine = Machine(shape, cache.folder, out)
    try:
        # QEMU works meanwhile.
        cache.verify()
        machine.wait_until_ready(deadline)
        detail("the guest is ready")
        if may_restore:
            _save(machine, cache, path, deadline)
        return machine
    except BaseException:
        machine.__exit__()
        raise


def _restored(shape, cache, out, path, deadline):
    with open(path, "rb") as snapshot:
        machine = Machine(shape, cache.folder, out, snapshot)
    try:
        cache.verify()
        try:
            cache.verify_snapshot(path)
        except Damaged as error:
            raise GuestLost(str(error))
        machine.wait_until_restored(deadline)
        detail("the guest goes on from its snapshot")
        return machine
    except BaseException:
        machine.__exit__()
        raise


def _save(machine, cache, path, deadline):
    """Take a snapshot for later runs, unless another run is taking one."""
    with cache.new_snapshot(path) as file:
        if file is None:
            return
        machine.save(file, deadline)
    detail(f"snapshot of {path.stat().st_size >> 20} MiB taken")


def _converse(machine, script, timeout_s):
    """Send the job and forward its output until the guest has told the status and all bytes."""
    control = machine.sockets["control"]
    control.sendall(b"%d\n" % len(script) + script)
    deadline = time.monotonic() + timeout_s
    targets = {machine.sockets["out"]: 1, machine.sockets["err"]: 2}
    forwarded = {1: 0, 2: 0}
    heard, ended = b"", None
    while ended is None or ended[1:] != (forwarded[1], forwarded[2]):
        seconds_left = deadline - time.monotonic()
        if seconds_left <= 0:
            say(f"the command was not done after {timeout_s:g} s; the guest is ended")
            return STATUS_TIMEOUT
        ready, _, _ = select.select([control, *targets], [], [], seconds_left)
        for socket in ready:
            received = socket.recv(1 << 18)
            if not received:
                raise machine.lost("ended before its command did")
            if socket is control:
                heard += received
                ended = ended or _ending(machine, heard)
            else:
                _write(targets[socket], received)
                forwarded[targets[socket]] += len(received)
    detail(f"the command ended with status {ended[0]}")
    return ended[0]


def _ending(machine, heard):
    """The status and the bytes of output and error output, once the guest has told them."""
    for line in heard.split(b"\n")[:-1]:
        words = line.decode(errors="replace").split()
        if words[:1] == ["EXIT"]:
            return tuple(int(word) for word in words[1:4])
        if words[:1] == ["FAIL"]:
            raise machine.lost(f"could not be set up: {' '.join(words[1:])}")
    return None


def _write(target, content):
    while content:
        content = content[os.write(target, content):]
