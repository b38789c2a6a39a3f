"""A distribution's kernel, made ready for the guest: an image that starts fast, and its modules."""

import lzma
import re
import shutil
import struct
import subprocess

from packages import unpack
from report import Unavailable, detail

# Packages that lead to a kernel with soft-RoCE, best first. Cloud kernels lack it. 6.12 came out
# eight times faster than 6.1 at small messages.
KERNELS = ("linux-image-6.12-amd64", "linux-image-amd64")

# Loaded before the guest takes a job, in this order. crc32_generic is what soft-RoCE's checksum
# asks for without saying so.
BOOT_MODULES = (
    "virtio_pci", "virtio_console", "9pnet_virtio", "9p", "overlay", "veth", "crc32_generic",
    "rdma_rxe", "ib_uverbs", "rdma_ucm",
)
# There for `modprobe`.
MORE_MODULES = (
    "sch_netem", "nvme", "ext4", "xfs", "crc32c_generic", "libcrc32c", "loop", "null_blk",
    "ib_umad", "dummy", "bridge",
)


class Kernel:
    """An unpacked kernel package."""

    def __init__(self, folder):
        self.image = next(folder.glob("boot/vmlinuz-*"))
        self.version = self.image.name.removeprefix("vmlinuz-")
        self.files = {}
        for path in folder.rglob("*.ko*"):
            self.files[path.name.split(".ko")[0].replace("-", "_")] = path
        self.contents = {}

    def order(self, names):
        """`names` and all modules that they need, each after those that it needs."""
        ordered = []

        def visit(name):
            if name in ordered or not self.has(name):
                return
            for other in self.needs(name):
                visit(other)
            ordered.append(name)

        for name in names:
            visit(name)
        return ordered

    def has(self, name):
        """Whether it is a module here; otherwise it is built in, or the kernel lacks it."""
        return name in self.files

    def needs(self, name):
        """The modules that must be loaded before it."""
        needs = _property(self.content(name), "depends").split(",")
        for line in _properties(self.content(name), "softdep"):
            if line.startswith("pre: "):
                needs += line.removeprefix("pre: ").split()
        return [other.replace("-", "_") for other in needs if other]

    def content(self, name):
        """The module as it is loaded."""
        if name not in self.contents:
            path = self.files[name]
            raw = path.read_bytes()
            self.contents[name] = lzma.decompress(raw) if path.suffix == ".xz" else raw
        return self.contents[name]

    def install_modules(self, folder):
        """Write the modules, and the lists that modprobe reads, to `folder`."""
        folder.mkdir(parents=True)
        names = self.order(BOOT_MODULES + MORE_MODULES)
        needs, aliases = [], []
        for name in names:
            (folder / f"{name}.ko").write_bytes(self.content(name))
            before = [f"{other}.ko" for other in reversed(self.order([name])[:-1])]
            needs.append(f"{name}.ko: {' '.join(before)}\n")
            for alias in _properties(self.content(name), "alias"):
                aliases.append(f"alias {alias} {name}\n")
        (folder / "modules.dep").write_text("".join(needs))
        (folder / "modules.alias").write_text("".join(aliases))

    def write_image(self, path):
        """Write what QEMU starts.

        The plain ELF file starts without the compressed image's own loader, which takes seconds
        when the processor is emulated. Where it cannot be unpacked the compressed image serves.
        """
        packed = self.image.read_bytes()
        # Documentation/arch/x86/boot.rst: setup_sects, payload_offset, payload_length.
        setup_sectors = packed[0x1F1] or 4
        offset, length = struct.unpack_from("<II", packed, 0x248)
        start = (setup_sectors + 1) * 512 + offset
        plain = _decompress(packed[start:start + length])
        if plain is None:
            detail("the kernel stays compressed: boots take some seconds more (no zstd?)")
        path.write_bytes(plain or packed)


def fetch(apt, folder):
    """Download and unpack the best kernel that apt knows. Returns it with its package's name."""
    meta, needs = apt.first_known(KERNELS)
    images = [name for name in needs if re.match(r"linux-image-\d", name)]
    if not images:
        raise Unavailable(f"{meta} leads to no kernel")
    detail(f"downloading {images[0]}")
    (package,) = apt.download(images[:1], folder)
    unpack(package, folder, lambda name: name if _is_wanted(name) else None)
    package.unlink()
    kernel = Kernel(folder)
    if not kernel.has("rdma_rxe"):
        raise Unavailable(f"{images[0]} has no soft-RoCE (rdma_rxe)")
    return kernel, images[0]


def _is_wanted(name):
    return name.startswith("boot/vmlinuz-") or ".ko" in name


def _decompress(payload):
    if payload.startswith(b"\xfd7zXZ\0"):
        return lzma.LZMADecompressor().decompress(payload)
    if payload.startswith(b"\x28\xb5\x2f\xfd") and shutil.which("zstd"):
        # The last four bytes are the length, for the loader.
        return subprocess.run(["zstd", "-dc"], input=payload[:-4], check=True,
                              stdout=subprocess.PIPE).stdout
    return None


def _properties(module, key):
    """The values of `key` in a module's .modinfo section, whose entries are `key=value\\0`."""
    pattern = rb"\0" + key.encode() + rb"=([^\0]*)"
    return [value.decode() for value in re.findall(pattern, module)]


def _property(module, key):
    return "".join(_properties(module, key)[:1])
