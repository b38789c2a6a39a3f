"""The folder where the guest's parts and its snapshots wait for the next run.

    <cache>/lock                 held shared by runs, alone by whoever builds or cleans
    <cache>/<key>/               parts made by this version of the tool
        SHA256SUMS               of every part; written last, so a folder that has it is whole
        snapshot-<id>[.sha256]   guests just before they take a job

The key is a hash of the tool's own files, so a changed tool makes new parts and drops the old.
"""

import contextlib
import fcntl
import hashlib
import os
import shutil
from pathlib import Path

import image
from report import Damaged, Unavailable, detail, say

HERE = Path(__file__).resolve().parent
SUMS = "SHA256SUMS"
SNAPSHOTS_MAX = 3
BYTES_NEEDED = 1 << 30


class Cache:
    """The cache of this user for this version of the tool."""

    def __init__(self):
        base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        self.root = Path(base) / "brigade-rdma-vm"
        self.folder = self.root / _key()
        self.file = None

    @property
    def is_ready(self):
        """Whether all parts were made. Whether they are still what they were, `verify` says."""
        return (self.folder / SUMS).exists()

    def open(self, apt):
        """Make the parts if they are not there. They stay until this process ends."""
        self._lock(fcntl.LOCK_SH)
        while not self.is_ready:
            self._lock(fcntl.LOCK_EX)
            if not self.is_ready:
                self._build(apt)
            self._lock(fcntl.LOCK_SH)

    def verify(self):
        """Raise Damaged unless every part is what it was when it was made."""
        lines = (self.folder / SUMS).read_text().splitlines()
        for line in lines:
            want, name = line.split("  ", 1)
            _check(self.folder / name, want)
        detail(f"checksums of {len(lines)} files are right")

    def snapshot(self, name):
        """The path of a snapshot and whether it is there."""
        path = self.folder / f"snapshot-{name}"
        return path, path.exists() and _sum_of(path).exists()

    def verify_snapshot(self, path):
        """Raise Damaged unless the snapshot is what it was when it was taken."""
        _check(path, _sum_of(path).read_text().strip())

    def snapshots(self):
        """All snapshots, oldest first."""
        paths = [path for path in self.folder.glob("snapshot-*") if path.suffix == ""]
        return sorted(paths, key=lambda path: path.stat().st_mtime)

    @contextlib.contextmanager
    def new_snapshot(self, path):
        """An open file to be filled, which becomes the snapshot at `path`; the oldest go.

        Gives None where another run is at it. A run that is killed leaves its unfinished file to
        the next, which writes over it.
        """
        unfinished = self.folder / "unfinished-snapshot"
        with open(self.folder / "saving", "w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                yield None
                return
            try:
                with open(unfinished, "wb") as file:
                    yield file
            except BaseException:
                unfinished.unlink()
                raise
            _sum_of(path).write_text(_sha256(unfinished))
            unfinished.rename(path)
        for old in self.snapshots()[:-SNAPSHOTS_MAX]:
            self.drop_snapshot(old)

    def drop_snapshot(self, path):
        """Forget a snapshot. A guest that is being restored from it keeps its open file."""
        path.unlink(missing_ok=True)
        _sum_of(path).unlink(missing_ok=True)

    def drop(self):
        """Forget the parts, so that `open` makes them again."""
        self._lock(fcntl.LOCK_EX)
        shutil.rmtree(self.folder, ignore_errors=True)

    @contextlib.contextmanager
    def alone(self):
        """While no other run uses the cache."""
        self._lock(fcntl.LOCK_EX)
        try:
            yield
        finally:
            self._lock(fcntl.LOCK_SH)

    def clean(self):
        """Remove everything, of every version. Returns the bytes freed."""
        if not self.root.exists():
            return 0
        try:
            self._lock(fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Unavailable(f"{self.root} is in use by a run; clean it when that has ended")
        freed = self.bytes()
        shutil.rmtree(self.root)
        return freed

    def bytes(self):
        """What the cache takes on the disk, all versions together."""
        return sum(path.stat().st_blocks * 512 for path in image.tree_files(self.root))

    def _build(self, apt):
        for old in self.root.iterdir():
            if old.is_dir():
                shutil.rmtree(old)
        free = shutil.disk_usage(self.root).free
        if free < BYTES_NEEDED:
            raise Unavailable(f"{self.root} has {free >> 20} MiB free, {BYTES_NEEDED >> 20} are "
                              "needed; XDG_CACHE_HOME moves it")
        say(f"filling {self.root} (once: downloads 120 MB, keeps 250 MB)")
        # A half-made folder has another name: no later run takes it for whole.
        unfinished = self.root / "unfinished"
        unfinished.mkdir()
        image.build(apt, unfinished)
        sums = [f"{_sha256(path)}  {path.relative_to(unfinished)}\n"
                for path in image.tree_files(unfinished)]
        (unfinished / SUMS).write_text("".join(sums))
        unfinished.rename(self.folder)

    def _lock(self, how):
        if self.file is None:
            try:
                self.root.mkdir(parents=True, exist_ok=True)
                self.file = open(self.root / "lock", "w")
            except OSError as error:
                raise Unavailable(f"no cache at {self.root} ({error}); XDG_CACHE_HOME moves it")
        try:
            fcntl.flock(self.file, how | fcntl.LOCK_NB)
        except BlockingIOError:
            if how & fcntl.LOCK_NB:
                raise
            say("another run is using the cache; waiting for it")
            fcntl.flock(self.file, how)


def _key():
    digest = hashlib.sha256()
    for path in sorted([HERE / "rdma-vm", *HERE.glob("*.py"), *image.GUEST.glob("*.sh")]):
        digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()[:12]


def _sum_of(path):
    return path.with_name(path.name + ".sha256")


def _sha256(path):
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def _check(path, want):
    try:
        found = _sha256(path)
    except OSError as error:
        raise Damaged(f"{path}: {error.strerror}")
    if found != want:
        raise Damaged(f"{path} is not what was written there")
