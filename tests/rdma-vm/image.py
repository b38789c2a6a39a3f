"""The guest's parts: kernel, first file system, and a layer of programs that the host may lack.

    kernel    what QEMU starts
    initrd    busybox, the boot modules and `guest/init.sh`: enough to bring the guest up
    layer/    libibverbs, perftest, iproute2 and modules; in the guest it lies under the host's
              file system, so what the host has itself comes first
"""

import json
import os
import shutil
import stat
from pathlib import Path

import kernel as kernels
from packages import unpack
from report import detail

GUEST = Path(__file__).resolve().parent / "guest"
PROGRAMS = ("busybox-static", "iproute2", "ibverbs-utils", "ibverbs-providers", "rdmacm-utils",
            "perftest")
# Where the guest keeps its own commands: no distribution has anything there.
BIN = "rdma-vm/bin"
APPLETS = ("sh", "modprobe", "insmod", "rmmod", "lsmod", "unshare")
# Not needed to run programs.
LEFT_OUT = ("usr/share/", "var/", "usr/lib/systemd/", "lib/systemd/", "etc/init.d/",
            "usr/lib/x86_64-linux-gnu/gconv/", "usr/lib/x86_64-linux-gnu/perl")
MERGED = ("bin/", "sbin/", "lib/", "lib64/")


def build(apt, folder):
    """Make kernel, initrd, layer/ and about.json in `folder`."""
    scratch = folder / "scratch"
    kernel, package = kernels.fetch(apt, scratch / "kernel")
    kernel.write_image(folder / "kernel")
    layer = folder / "layer"
    names = apt.closure(PROGRAMS)
    detail(f"downloading {len(names)} packages: {' '.join(names)}")
    files = apt.download(names, scratch / "packages")
    layer.mkdir()
    for file in files:
        unpack(file, layer, merged)
    kernel.install_modules(layer / "usr/lib/modules" / kernel.version)
    _add_commands(layer)
    (folder / "initrd").write_bytes(_initrd(kernel, layer))
    versions = [file.name.removesuffix(".deb") for file in files]
    made_from = {"kernel": kernel.version, "kernel_package": package, "packages": versions}
    (folder / "about.json").write_text(json.dumps(made_from, indent=1))
    shutil.rmtree(scratch)


def about(folder):
    """What the parts in `folder` were made from: `kernel`, `kernel_package`, `packages`."""
    return json.loads((folder / "about.json").read_text())


def merged(name):
    """Where a packaged file lies now that /bin, /sbin and /lib are links into /usr."""
    if name.startswith(LEFT_OUT):
        return None
    return f"usr/{name}" if name.startswith(MERGED) else name


def _add_commands(layer):
    own = layer / BIN
    own.mkdir(parents=True)
    shutil.move(layer / "usr/bin/busybox", own / "busybox")
    for name in APPLETS:
        (own / name).symlink_to("busybox")
    for name in ("cable", "on"):
        shutil.copy(GUEST / f"{name}.sh", own / name)
        (own / name).chmod(0o755)
    for top in MERGED:
        (layer / "usr" / top).mkdir(exist_ok=True)
        (layer / top.rstrip("/")).symlink_to(f"usr/{top.rstrip('/')}")


def _initrd(kernel, layer):
    order = kernel.order(kernels.BOOT_MODULES)
    archive = Archive()
    for folder in ("bin", "modules"):
        archive.add(folder, stat.S_IFDIR | 0o755)
    busybox = (layer / BIN / "busybox").read_bytes()
    archive.add("bin/busybox", stat.S_IFREG | 0o755, busybox)
    archive.add("init", stat.S_IFREG | 0o755, (GUEST / "init.sh").read_bytes())
    archive.add("job.sh", stat.S_IFREG | 0o644, (GUEST / "job.sh").read_bytes())
    archive.add("modules/order", stat.S_IFREG | 0o644, ("\n".join(order) + "\n").encode())
    for name in order:
        archive.add(f"modules/{name}.ko", stat.S_IFREG | 0o644, kernel.content(name))
    return archive.finish()


class Archive:
    """A cpio archive in the form that Linux unpacks at boot (buffer-format.rst, "newc")."""

    def __init__(self):
        self.parts = []
        self.files = 0

    def add(self, name, mode, content=b""):
        """Append one file; folders must come before what they hold."""
        self.files += 1
        name = name.encode() + b"\0"
        fields = (self.files, mode, 0, 0, 1, 0, len(content), 0, 0, 0, 0, len(name), 0)
        header = b"070701" + b"".join(b"%08X" % field for field in fields)
        self.parts += [_padded(header + name), _padded(content)]

    def finish(self):
        """The whole archive, closed by its last entry."""
        self.add("TRAILER!!!", 0)
        return b"".join(self.parts)


def _padded(content):
    return content + b"\0" * (-len(content) % 4)


def tree_files(folder):
    """All plain files below `folder`, sorted."""
    found = []
    for place, _, names in os.walk(folder):
        found += [Path(place) / name for name in names]
    return sorted(path for path in found if path.is_file() and not path.is_symlink())
