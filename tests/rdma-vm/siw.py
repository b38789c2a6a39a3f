"""Soft-iWARP (siw): the distribution's kernels lack it, so it is built from their source."""

import re
import shutil
import subprocess
import tarfile

import image
from packages import unpack
from report import Unavailable, detail, say

MODULE = "siw.ko"
SOURCE = "drivers/infiniband/sw/siw/"
# What building needs on the host, beside the compiler that the kernel's headers name.
PROGRAMS = (("make", "make"), ("gcc", "gcc"))


def module(cache, apt):
    """The path of siw.ko for the guest's kernel, built where it is not there."""
    path = cache.folder / MODULE
    if not path.exists():
        with cache.alone():
            if not path.exists():
                scratch = cache.folder / "unfinished-siw"
                shutil.rmtree(scratch, ignore_errors=True)
                _build(apt, image.about(cache.folder)["kernel"], scratch).rename(path)
                shutil.rmtree(scratch)
    return path


def _build(apt, version, scratch):
    say(f"building {MODULE} for {version} (once: downloads 160 MB)")
    headers = f"linux-headers-{version}"
    _, needs = apt.first_known([headers])
    compilers = [name for name in needs if re.fullmatch(r"gcc-\d+(-for-host)?", name)]
    apt.need_host_programs([(name.removesuffix("-for-host"), name) for name in compilers])
    parts = [name for name in needs if name.startswith(("linux-headers-", "linux-kbuild-"))]
    for package in apt.download([headers, *parts], scratch / "packages"):
        unpack(package, scratch, lambda name: name)
    tree = scratch / "usr/src" / headers
    makefile = (tree / "Makefile").read_text()
    # The headers' Makefile names its other half by the place where it would be installed.
    (tree / "Makefile").write_text(makefile.replace("/usr/src/", f"{scratch}/usr/src/"))
    # With it, make would look for a program that writes debugging types.
    (tree / "vmlinux").unlink(missing_ok=True)
    series = ".".join(version.split(".")[:2])
    (package,) = apt.download([f"linux-source-{series}"], scratch / "source")
    _take_source(package, scratch / "siw")
    make = ["make", "-s", "-C", tree, f"M={scratch}/siw", "CONFIG_RDMA_SIW=m", "modules"]
    detail("make")
    run = subprocess.run(make, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    built = scratch / "siw" / MODULE
    if run.returncode != 0 or not built.exists():
        raise Unavailable(f"{MODULE} did not build: {run.stdout[-500:]}{run.stderr[-1500:]}")
    subprocess.run(["strip", "--strip-debug", built], check=True)
    return built


def _take_source(package, folder):
    """Take the driver's files out of the archive inside the package of the kernel's source."""
    folder.mkdir()
    unpack(package, folder, lambda name: "source.tar" if ".tar." in name else None)
    with tarfile.open(folder / "source.tar", mode="r|*") as tar:
        found = False
        for member in tar:
            if f"/{SOURCE}" in member.name and member.isfile():
                found = True
                name = member.name.rsplit("/", 1)[1]
                (folder / name).write_bytes(tar.extractfile(member).read())
            elif found:
                break
    (folder / "source.tar").unlink()
