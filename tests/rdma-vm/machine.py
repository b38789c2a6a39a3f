"""One QEMU process, from start to end: its arguments, its ports, its snapshot.

All that it needs from this run comes as open files, so a run leaves no file behind, and it dies
with the thread that started it, so a killed run leaves no process behind either.
"""

import ctypes
import hashlib
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import tempfile
import time

from packages import QEMU
from report import GuestLost, detail

PORTS = ("control", "out", "err")
PR_SET_PDEATHSIG = 1
KERNEL_WORDS = ("console=ttyS0 quiet panic=-1 maxcpus=1 nokaslr mitigations=off audit=0 "
                "tsc=reliable no_timer_check random.trust_cpu=on")
CONSOLE_TAIL_BYTES = 3000


class Shape:
    """What a guest is made of: two guests of one shape can take each other's snapshots."""

    def __init__(self, cpus, memory_mib, accelerator, nvme_bytes=None):
        self.cpus = cpus
        self.memory_mib = memory_mib
        self.accelerator = accelerator if accelerator != "auto" else _best_accelerator()
        self.nvme_bytes = nvme_bytes

    @property
    def can_be_restored(self):
        """QEMU's NVMe drive cannot be saved; KVM boots in the time that a restore takes."""
        return self.nvme_bytes is None and self.accelerator == "tcg"

    def arguments(self, parts):
        """QEMU's arguments, as far as they do not depend on the run."""
        processor = ["-accel", "kvm", "-cpu", "host"]
        if self.accelerator == "tcg":
            processor = ["-accel", "tcg,thread=multi,tb-size=256", "-cpu", "max"]
        return [
            "-M", "pc,usb=off,vmport=off", *processor,
            "-m", f"{self.memory_mib}M", "-smp", str(self.cpus),
            "-nodefaults", "-no-user-config", "-display", "none", "-no-reboot",
            "-kernel", f"{parts}/kernel", "-initrd", f"{parts}/initrd", "-append", KERNEL_WORDS,
            "-device", "virtio-serial-pci,id=ports",
            *_shared_folder("host", "/", ",readonly=on"),
            *_shared_folder("layer", f"{parts}/layer", ",readonly=on"),
        ]

    def snapshot_name(self, parts):
        """A name that only guests of this shape under this QEMU share."""
        program = os.stat(shutil.which(QEMU))
        words = [*self.arguments(parts), str(program.st_size), str(program.st_mtime_ns)]
        return hashlib.sha256("\0".join(words).encode()).hexdigest()[:12]


class Machine:
    """A running guest. Use it in a `with`: at its end the guest ends."""

    def __init__(self, shape, parts, out_folder=None, snapshot=None):
        pairs = {name: socket.socketpair() for name in (*PORTS, "monitor")}
        self.sockets = {name: pair[0] for name, pair in pairs.items()}
        far = {name: pair[1] for name, pair in pairs.items()}
        # Open files without names: nothing is left of them when QEMU ends.
        self.console = os.memfd_create("console")
        self.complaints = os.memfd_create("qemu")
        files = [socket_.fileno() for socket_ in far.values()] + [self.console]
        words = [QEMU, *shape.arguments(parts)]
        words += ["-chardev", f"file,id=console,path=/proc/self/fd/{self.console}",
                  "-serial", "chardev:console"]
        words += ["-chardev", f"socket,id=monitor,fd={far['monitor'].fileno()}",
                  "-mon", "chardev=monitor,mode=control"]
        for number, name in enumerate(PORTS, 1):
            words += ["-chardev", f"socket,id={name},fd={far[name].fileno()}", "-device",
                      f"virtserialport,bus=ports.0,nr={number},chardev={name},name={name}"]
        # Always there, so that the shape does not depend on it; without a folder nothing mounts it.
        writable = "" if out_folder else ",readonly=on"
        words += _shared_folder("out", out_folder or f"{parts}/layer", writable)
        if shape.nvme_bytes is not None:
            drive = tempfile.TemporaryFile(dir=parts)
            drive.truncate(shape.nvme_bytes)
            files.append(drive.fileno())
            words += ["-drive", f"file=/proc/self/fd/{drive.fileno()},if=none,id=drive,format=raw,"
                      "cache=unsafe,aio=threads", "-device", "nvme,serial=brigade,drive=drive"]
        if snapshot:
            files.append(snapshot.fileno())
            words += ["-incoming", f"fd:{snapshot.fileno()}"]
        detail(f"{QEMU} starts{' from the snapshot' if snapshot else ''}")
        self.process = subprocess.Popen(
            words, pass_fds=files, stdin=subprocess.DEVNULL, stdout=self.complaints,
            stderr=self.complaints, start_new_session=True, preexec_fn=_dies_with(os.getpid()),
        )
        for socket_ in far.values():
            socket_.close()
        self.monitor = None

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()
        for socket_ in self.sockets.values():
            socket_.close()
        os.close(self.console)
        os.close(self.complaints)

    def wait_until_ready(self, deadline):
        """Wait for a booting guest to say that it can take a job."""
        line = b""
        while not line.endswith(b"\n"):
            seconds_left = deadline - time.monotonic()
            if seconds_left <= 0:
                raise self.lost("did not come up in time")
            ready, _, _ = select.select([self.sockets["control"]], [], [], seconds_left)
            if ready:
                received = self.sockets["control"].recv(1)
                if not received:
                    raise self.lost("ended while it came up")
                line += received
        if line.strip() != b"READY":
            raise self.lost(f"came up saying {line!r}")

    def wait_until_restored(self, deadline):
        """Wait for a snapshot to be read, and let the guest go on from it."""
        while (status := self._command("query-status")["status"]) == "inmigrate":
            if time.monotonic() > deadline:
                raise self.lost("did not read its snapshot in time")
            time.sleep(0.005)
        if status not in ("paused", "postmigrate", "running"):
            raise self.lost(f"was restored into the state {status}")
        self._command("cont")

    def save(self, file, deadline):
        """Write a snapshot into the open `file`; the guest goes on afterwards."""
        self._command("stop")
        self._command("migrate-set-parameters", {"max-bandwidth": 1 << 40})
        self._command("getfd", {"fdname": "snapshot"}, [file.fileno()])
        self._command("migrate", {"uri": "fd:snapshot"})
        while (status := self._command("query-migrate").get("status")) != "completed":
            if status in ("failed", "cancelled") or time.monotonic() > deadline:
                raise self.lost(f"could not be saved ({status})")
            time.sleep(0.01)
        self._command("cont")

    def lost(self, what):
        """The error for a guest that `what`, with the last words of QEMU and of its console."""
        words = [f"the guest {what}"]
        for name, file in (("QEMU", self.complaints), ("console", self.console)):
            size = os.fstat(file).st_size
            start = max(size - CONSOLE_TAIL_BYTES, 0)
            tail = os.pread(file, CONSOLE_TAIL_BYTES, start).decode(errors="replace").strip()
            if tail:
                words.append(f"--- the end of {name}'s words:\n{tail}")
        return GuestLost("\n".join(words))

    def _command(self, name, arguments=None, files=()):
        """Give QEMU one command of its machine protocol, and return its answer."""
        try:
            if self.monitor is None:
                self.monitor = self.sockets["monitor"].makefile("r")
                self.monitor.readline()
                self._exchange("qmp_capabilities", {}, ())
            return self._exchange(name, arguments or {}, files)
        except (OSError, ValueError):
            raise self.lost(f"ended at the command {name}")

    def _exchange(self, name, arguments, files):
        words = json.dumps({"execute": name, "arguments": arguments}).encode()
        socket.send_fds(self.sockets["monitor"], [words], list(files))
        while True:
            answer = json.loads(self.monitor.readline())
            if "error" in answer:
                raise self.lost(f"refused {name}: {answer['error']['desc']}")
            if "return" in answer:
                return answer["return"]


def _shared_folder(name, path, how):
    path = str(path).replace(",", ",,")
    return ["-fsdev", f"local,id={name},path={path},security_model=none,multidevs=remap{how}",
            "-device", f"virtio-9p-pci,fsdev={name},mount_tag={name}"]


def _best_accelerator():
    """KVM where the processor itself does it: nested forms have hung in the kernel's start."""
    hardware = any(os.path.exists(f"/sys/module/{name}") for name in ("kvm_intel", "kvm_amd"))
    return "kvm" if hardware and os.access("/dev/kvm", os.R_OK | os.W_OK) else "tcg"


def _dies_with(parent):
    """What the child does before it becomes QEMU, so that it is killed when its parent dies."""
    libc = ctypes.CDLL(None)

    def bind():
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        # The parent may have died before the line above.
        if os.getppid() != parent:
            os._exit(1)

    return bind
