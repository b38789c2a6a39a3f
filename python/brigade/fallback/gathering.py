"""How the ranks of a new group get its unique id from the store, and hear who will not come."""

import os
import secrets
import sys
import time
from ctypes import byref, c_int, c_uint64, c_void_p

import torch.distributed as dist

from ..communicator import unique_id
from ..library import DTYPES, LIBRARY, SUCCESS
from .channel import at_store, check, fate_of, in_words, join, limited


def meet(store, who, rank, size, timeout_ms, known):
    """Come together with the others: the group's key in the store, and its handle."""
    with at_store(who):
        turn = store.add(f"brigade/turn/{rank}", 1)
        key = f"brigade/{turn}"
        drawn = Gathering(store, key, who, rank, size, timeout_ms, known).id()
    joined, comm = join(drawn, rank, size, timeout_ms)
    check(joined, who)
    return key, comm


def go_on_without(gone, comm, key, who, timeout_ms):
    """Those of a group that are left, over the wires that they have: a key of theirs below the
    group's, which the first of them draws, and the handle.
    """
    left, (config, _held) = c_void_p(), limited(timeout_ms)
    listed = (c_int * len(gone))(*gone)
    check(LIBRARY.brigade_comm_shrink(comm, listed, len(gone), byref(left), byref(config)), who)
    number = (c_uint64 * 1)(secrets.randbits(64))
    try:
        check(LIBRARY.brigade_broadcast(number, number, 1, DTYPES["uint64"], 0, left, None), who)
    except dist.DistBackendError:
        LIBRARY.brigade_comm_destroy(left)
        raise
    return f"{key}/left/{number[0]:016x}", left


class Gathering:
    """One rank that meets the others. With `known`, a group in which all of them are, rank 0 draws
    no id before all have said that they are there, so nobody waits within the library for one that
    has gone. Without, it draws the id at once; then the library tells who is late.
    """

    def __init__(self, store, key, who, rank, size, timeout_ms, known):
        self._store, self._key, self._who = store, key, who
        self._rank, self._size = rank, size
        self._timeout = timeout_ms / 1000
        # The handle of that group, and the number of each rank there.
        self._comm, self._ranks = known or (None, [])

    def id(self):
        self._store.set(self._there(self._rank), b"\1")
        if self._rank == 0:
            if self._comm is not None:
                self._await([self._there(rank) for rank in range(1, self._size)])
            drawn = unique_id()
            self._store.set(self._key, drawn)
            return drawn
        self._await([self._key])
        return self._store.get(self._key)

    def _there(self, rank):
        return f"{self._key}/there/{rank}"

    def _await(self, keys):
        began, report_after = time.monotonic(), report_seconds()
        while not self._store.check(keys):
            waited = time.monotonic() - began
            for rank, known in enumerate(self._ranks):
                self._check_fate(rank, known)
            if waited >= self._timeout:
                raise self._failure(
                    f"waited {waited:.1f} s for {self._missing()} to come to this group: look at "
                    "the missing processes' own output"
                )
            if waited >= report_after:
                self._report(waited)
                while report_after <= waited:
                    report_after *= 3
            # No wait becomes much longer by it, and a long one costs the store little.
            time.sleep(min(max(waited / 32, 0.0003), 0.05))

    def _check_fate(self, rank, known):
        fate = fate_of(self._comm, known)
        if fate != SUCCESS:
            also = "" if known == rank else f" ({known} of its elder group)"
            raise self._failure(
                f"rank {rank}{also} will not come to this group: it {in_words(fate)}"
            )

    def _failure(self, what):
        return dist.DistBackendError(f"brigade, {self._who}: {what}")

    def _report(self, waited):
        """Tell who is late, unless rank 0 is there and does."""
        if self._rank == 0 or not self._store.check([self._there(0)]):
            left = int(self._timeout - waited)
            sys.stderr.write(
                f"brigade: {self._who} has waited {waited:.1f} s for {self._missing()} to "
                f"come to a group of {self._size}; it gives up in {left} s\n"
            )

    def _missing(self):
        """Who has not come yet: the first few."""
        ranks = range(self._size)
        missing = [str(rank) for rank in ranks if not self._store.check([self._there(rank)])]
        if not missing:
            return "the others"
        more = " and more" if len(missing) > 8 else ""
        return f"rank{'s' * (len(missing) > 1)} {', '.join(missing[:8])}{more}"


def report_seconds():
    """As the library tells of a long join."""
    try:
        return max(float(os.environ.get("BRIGADE_REPORT_MS") or 30000) / 6000, 0.001)
    except ValueError:
        return 5.0  # The library says what is wrong with it, in a moment.
