"""Packages of the distribution, by the system's own apt.

What the guest needs is downloaded, checked by apt against the signed lists, and unpacked into the
cache: it is never installed. Only what runs on the host (QEMU) must be installed, and that happens
only when the user said so.
"""

import os
import re
import shutil
import subprocess
import tarfile
import time

from report import Unavailable, detail, say

# Programs of the host, with the package that has them.
QEMU = "qemu-system-x86_64"
HOST_PROGRAMS = {QEMU: "qemu-system-x86"}
# Dependencies that the guest's programs run without.
NOT_NEEDED = ("adduser", "debconf", "cdebconf", "libcap2-bin", "libdb5", "libtirpc",
              "pci.ids", "gcc-")
LISTS_HINT = "Run `apt-get update` as root, or give --install"


class Apt:
    """The system's package tool, with the user's word on whether it may change the system."""

    def __init__(self, may_install, deadline):
        self.may_install = may_install
        self.deadline = deadline
        self.lists_are_fresh = False

    def need_host_programs(self, more=()):
        """See to it that QEMU (and programs of the (program, package) pairs in `more`) is there.

        Raises Unavailable with the command to type where it is missing and may not be installed.
        """
        wanted = [*HOST_PROGRAMS.items(), *more]
        missing = sorted({package for program, package in wanted if not shutil.which(program)})
        if not missing:
            return
        command = ["apt-get", "install", "-y", "--no-install-recommends", *missing]
        if not self.may_install:
            raise Unavailable(
                f"not installed: {', '.join(missing)}. Type `{' '.join(command)}` as root, "
                "or run this again with --install"
            )
        if os.geteuid() != 0:
            raise Unavailable(f"only root can install: type `sudo {' '.join(command)}`")
        say(f"installing {', '.join(missing)}: {' '.join(command)}")
        self._with_fresh_lists(command[1:])

    def closure(self, roots):
        """The packages in `roots` with all that they depend on."""
        graph = self._dependencies(roots)
        if not set(roots) <= set(graph) and self.may_install:
            self._refresh()
            graph = self._dependencies(roots)
        unknown = sorted(set(roots) - set(graph))
        if unknown:
            raise Unavailable(f"apt does not know {', '.join(unknown)}. {LISTS_HINT}")
        found, open_ends = set(), list(roots)
        while open_ends:
            package = open_ends.pop()
            if package not in found and not package.startswith(NOT_NEEDED):
                found.add(package)
                open_ends.extend(graph.get(package, []))
        return sorted(found)

    def first_known(self, packages):
        """The first of `packages` that can be downloaded, and what it depends on directly.

        Old lists may know a lesser one only, so they are refreshed before that is taken.
        """
        if self.may_install and packages[0] not in self._dependencies(packages[:1]):
            try:
                self._refresh()
            except Unavailable as reason:
                detail(f"{reason}; what is known already must do")
        for package in packages:
            graph = self._dependencies([package])
            if package in graph:
                return package, graph[package]
        raise Unavailable(f"apt knows none of {', '.join(packages)}. {LISTS_HINT}")

    def download(self, packages, folder):
        """Put the files of `packages` into `folder`. Returns their paths."""
        folder.mkdir(parents=True, exist_ok=True)
        self._with_fresh_lists(["download", *packages], folder)
        return sorted(folder.glob("*.deb"))

    def _dependencies(self, roots):
        flags = [f"--no-{kind}" for kind in
                 ("recommends", "suggests", "conflicts", "breaks", "replaces", "enhances")]
        run = self._run(["apt-cache", "depends", "--recurse", *flags, *roots])
        graph, package = {}, None
        for line in run.stdout.splitlines():
            if re.match(r"[a-z0-9]", line):
                package = line.strip()
                graph[package] = []
            elif (edge := re.match(r"[ |]*(?:Pre)?Depends: ([a-z0-9]\S*)", line)) and package:
                graph[package].append(edge.group(1))
        return graph

    def _with_fresh_lists(self, arguments, folder=None):
        """Run apt-get; where old lists may be why it failed, refresh them once and try again."""
        run = self._apt_get(arguments, folder)
        if run.returncode != 0 and self.may_install and not self.lists_are_fresh:
            self._refresh()
            run = self._apt_get(arguments, folder)
        if run.returncode != 0:
            hint = "" if self.lists_are_fresh else f", and are apt's lists old? {LISTS_HINT}"
            raise Unavailable(f"`apt-get {arguments[0]}` failed: {_last_words(run)}. "
                              f"Is there a network{hint or '?'}")

    def _refresh(self):
        if self.lists_are_fresh:
            return
        self.lists_are_fresh = True
        if os.geteuid() == 0:
            detail("apt-get update")
            run = self._apt_get(["update"])
            if run.returncode != 0:
                raise Unavailable(f"`apt-get update` failed: {_last_words(run)}")

    def _apt_get(self, arguments, folder=None):
        # Without the setting, apt warns that its unprivileged user cannot write to the cache.
        settings = ["-o", "DPkg::Lock::Timeout=120"]
        if os.geteuid() == 0:
            settings += ["-o", "APT::Sandbox::User=root"]
        return self._run(["apt-get", "-q", *settings, *arguments], folder)

    def _run(self, command, folder=None):
        if not shutil.which(command[0]):
            raise Unavailable(
                f"{command[0]} is missing: the guest is made of Debian packages, and this tool "
                "fetches them on Debian 12 or later only"
            )
        seconds_left = self.deadline - time.monotonic()
        environment = dict(os.environ, LC_ALL="C", DEBIAN_FRONTEND="noninteractive")
        try:
            return subprocess.run(
                command, cwd=folder, env=environment, capture_output=True, text=True,
                stdin=subprocess.DEVNULL, timeout=max(seconds_left, 0.1),
            )
        except subprocess.TimeoutExpired:
            raise Unavailable(f"`{' '.join(command[:2])}` took too long; --within allows more")


def unpack(package, folder, place):
    """Unpack a package file into `folder`. `place(name)` renames a file, or is None to leave it."""
    with subprocess.Popen(["dpkg-deb", "--fsys-tarfile", package], stdout=subprocess.PIPE) as dpkg:
        with tarfile.open(fileobj=dpkg.stdout, mode="r|") as tar:
            # The packages are signed, and some hold absolute links, which newer Pythons refuse.
            tar.extraction_filter = lambda member, path: member
            for member in tar:
                name = place(member.name.removeprefix("./"))
                if name is None or member.isdev() or member.isdir():
                    continue
                member.name = name
                if member.islnk():
                    member.linkname = place(member.linkname.removeprefix("./"))
                tar.extract(member, folder)
    if dpkg.returncode != 0:
        raise Unavailable(f"{package} does not unpack: `dpkg-deb` ended with {dpkg.returncode}")


def _last_words(run):
    lines = [line.strip() for line in (run.stdout + run.stderr).splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("E:")]
    return " / ".join((errors or lines)[-3:]) or f"status {run.returncode}"
