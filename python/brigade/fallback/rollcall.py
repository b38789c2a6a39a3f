"""A barrier with a timeout of its own, after which all who have come hear from rank 0 who has not.
It is held at the store, so it ends nothing, and can be held where calls do not go on any more.
"""

import time

import torch.distributed as dist

from ..library import SUCCESS
from .channel import fate_of, in_words

# What may pass between ranks that are both there. [seconds]
GRACE = 5


def holds_within(limit, holds):
    """Whether something is so within `limit` seconds."""
    began = time.monotonic()
    while not holds():
        waited = time.monotonic() - began
        if waited >= limit:
            return False
        # No wait becomes much longer by it, and a long one costs the store little.
        time.sleep(min(max(waited / 32, 0.0003), 0.05))
    return True


class RollCall:
    """One of them: `key` is its own, `comm` hears of deaths."""

    def __init__(self, store, key, who, comm, rank, size, timeout):
        self._store, self._key, self._who, self._comm = store, key, who, comm
        self._rank, self._size, self._timeout = rank, size, timeout

    def hold(self, wait_all):
        """Return when all have come; raise on all who have if others have not. One that is known
        not to come any more ends it at once, unless `wait_all` of the others.
        """
        self._store.set(self._there(self._rank), b"\1")
        if self._rank > 0:
            return self._answer()
        absent = self._call(wait_all)
        self._store.set(self._verdict(), absent)
        self._dismiss()
        if absent:
            raise self._failure(absent)

    def _there(self, rank):
        return f"{self._key}/there/{rank}"

    def _heard(self, rank):
        return f"{self._key}/heard/{rank}"

    def _verdict(self):
        return f"{self._key}/verdict"

    def _failure(self, what):
        return dist.DistBackendError(f"brigade, {self._who}, monitored_barrier: {what}")

    def _call(self, wait_all):
        """Rank 0: wait for the others. Who has not come, in words."""
        told, awaited = [], list(range(1, self._size))

        def all_came():
            for rank in list(awaited):
                fate = fate_of(self._comm, rank)
                # It may have come before it went.
                if fate != SUCCESS and not self._store.check([self._there(rank)]):
                    told.append(f"rank {rank} {in_words(fate)}")
                    awaited.remove(rank)
            keys = [self._there(rank) for rank in awaited]
            return (told and not wait_all) or not keys or self._store.check(keys)

        if not holds_within(self._timeout, all_came):
            late = [str(rank) for rank in awaited if not self._store.check([self._there(rank)])]
            if late:
                told.append(
                    f"rank{'s' * (len(late) > 1)} {', '.join(late)} did not come within "
                    f"{self._timeout * 1000:.0f} ms: look at the missing processes' own output"
                )
        return "; ".join(told)

    def _dismiss(self):
        """Rank 0 may serve the store: it goes on when all who have come know how this ended, or
        after some time. What nobody needs any more it removes.
        """
        ranks = range(1, self._size)
        there = [rank for rank in ranks if self._store.check([self._there(rank)])]
        keys = [self._heard(rank) for rank in there]
        limit = min(self._timeout, GRACE)
        all_heard = holds_within(limit, lambda: not keys or self._store.check(keys))
        if all_heard and len(there) + 1 == self._size:
            for key in [self._verdict(), self._there(0), *keys, *map(self._there, there)]:
                self._store.delete_key(key)

    def _known(self, key):
        if self._store.check([key]):
            return True
        fate = fate_of(self._comm, 0)
        if fate != SUCCESS and not self._store.check([key]):
            raise self._failure(f"rank 0 {in_words(fate)}")
        return False

    def _answer(self):
        """The others: wait for rank 0, then for what it finds, which takes it as long at most."""
        limit = f"within {self._timeout * 1000:.0f} ms"
        if not holds_within(self._timeout, lambda: self._known(self._there(0))):
            # If it comes now it shall not find one who has gone on.
            self._store.delete_key(self._there(self._rank))
            raise self._failure(f"rank 0 did not come {limit}")
        if not holds_within(self._timeout + GRACE, lambda: self._known(self._verdict())):
            raise self._failure(f"rank 0 came, and did not say who else has {limit}")
        verdict = self._store.get(self._verdict()).decode()
        self._store.set(self._heard(self._rank), b"\1")
        if verdict:
            raise self._failure(f"rank 0 says: {verdict}")
