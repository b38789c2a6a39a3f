"""Messages from one rank to another: a communicator of the two, made when the first message is
sent, and a thread that sends or receives.
"""

import contextlib
import ctypes
import struct
import threading
import time
from collections import defaultdict, deque
from ctypes import byref, c_int, c_void_p, sizeof

import torch.distributed as dist

from ..communicator import config_of, unique_id
from ..library import (
    DTYPES, LIBRARY, PEER_LEFT, PEER_LOST, SUCCESS, TIMEOUT, Config, Id,
)
from .works import Lane

BYTES = DTYPES["uint8"]
# What goes in front of every message: tag, bytes, and how many elements of which type of brigade.h
# make one of torch's.
HEADER = struct.Struct("=qQII")
NAMES = {number: name for name, number in DTYPES.items()}


def check(result, who=None):
    """Raise what a call failed with, as torch knows it, and whose it was."""
    if result != SUCCESS:
        ours = f"brigade, {who}" if who else "brigade"
        raise dist.DistBackendError(f"{ours}: {LIBRARY.brigade_last_error().decode()}")


def fate_of(comm, rank):
    """What is known to have become of a rank: PEER_LOST, PEER_LEFT, or nothing."""
    gone = c_int()
    # The communicator may have ended meanwhile: then nothing is known any more.
    known = LIBRARY.brigade_comm_get_rank_error(comm, rank, byref(gone))
    return gone.value if known == SUCCESS else SUCCESS


def in_words(fate):
    """What has become of a rank."""
    return "is lost, its process ended" if fate == PEER_LOST else "has left"


def end_of_world(comm, size):
    """What ended a world, with the rank that did where one is known to have gone; "" as long as it
    goes on.
    """
    ended = c_int()
    check(LIBRARY.brigade_comm_get_async_error(comm, byref(ended)))
    if ended.value == SUCCESS:
        return ""
    for rank in range(size):
        if fate_of(comm, rank) == ended.value:
            return f"rank {rank} {in_words(ended.value)}"
    return LIBRARY.brigade_error_string(ended.value).decode()


def milliseconds(timeout):
    """A timeout of torch's as a number."""
    return timeout.total_seconds() * 1000


def limited(timeout_ms):
    """A config in which calls may stand still for `timeout_ms`, and joining may; what it holds."""
    limit = max(int(timeout_ms), 1)
    settings = {"timeout_ms": limit, "join_timeout_ms": min(limit, 24 * 3600 * 1000)}
    config, held = config_of(settings)
    assert config.struct_size == sizeof(Config)
    return config, held


def join(drawn, rank, size, timeout_ms):
    """Join those who have the same id: how that ended, and the handle."""
    handle, (config, _held) = c_void_p(), limited(timeout_ms)
    drawn = Id.from_buffer_copy(drawn)
    function = LIBRARY.brigade_comm_init_rank_config
    return function(byref(handle), size, drawn, rank, byref(config)), handle


@contextlib.contextmanager
def at_store(who):
    """What is done at a store that others serve. One that is gone says so, and what to do."""
    try:
        yield
    except dist.DistNetworkError as error:
        raise dist.DistBackendError(
            f"brigade, {who}: the store at which ranks meet does not answer: its process has to "
            f"stay until all have ended (rank 0, unless torchrun serves it): {error}"
        ) from error


class OwnStore:
    """A connection of our own to a store: who waits at one that others use makes them wait too, and
    is made to wait by them. It is made when it is first needed, and once: a host's name is looked
    up, which may take seconds. One that cannot be made is not tried again by all who need it.
    """

    def __init__(self, shared):
        self._shared, self._lock = shared, threading.Lock()
        self._own = self._failure = None

    def get(self):
        """The connection."""
        with self._lock:
            if self._failure is not None:
                raise self._failure
            try:
                if self._own is None:
                    can_clone = hasattr(self._shared, "clone")
                    self._own = self._shared.clone() if can_clone else self._shared
            except Exception as error:
                self._failure = error
                raise
            return self._own


class Channel:
    """One direction between this rank and a peer."""

    def __init__(self, store, key, who, rank, peer, sends, timeout_ms, world, size):
        self._store, self._key, self._who = store, key, who
        self._rank, self._peer = rank, peer
        self._sends, self._timeout_ms, self._world, self._size = sends, timeout_ms, world, size
        self._lane, self._lock = Lane(), threading.Lock()
        self._comm, self._stopped = None, False
        # Whether it waits for the sender to begin.
        self._is_listening = False
        self._posted, self._kept = deque(), defaultdict(deque)

    def send(self, work, run, tag):
        """Queue a message."""

        def body():
            self._meet()
            header = HEADER.pack(tag, run.data.nbytes, run.dtype, run.each)
            self._move("send", header, HEADER.size)
            self._move("send", run.address, run.data.nbytes)

        self._lane.post(lambda: work.carry_out(body))

    def receive(self, work, run, tag):
        """Queue room for a message."""
        # What has come already waits for nothing else, which the lane may; who waits for what comes
        # next must not do so for one that is had.
        with self._lock:
            self._posted.append((work, run, tag))
            had = list(iter(self._take_kept, None))
        for delivery in had:
            self._hand_over(*delivery)
        self._lane.post(self._take_one)

    def drain(self, patience, deadline):
        """Wait until nothing is on its way; whether that is so at the deadline. Whoever does no
        more than listen is waited for until `patience` only.
        """
        until = deadline if self._sends else patience
        while not self._lane.drain(max(until - time.monotonic(), 0)):
            if self._is_listening or until >= deadline:
                return False
            until = min(deadline, time.monotonic() + 0.05)
        return True

    def abort(self, reason):
        """Make everything that waits fail."""
        with self._lock:
            self._stopped = True
            if self._comm is not None:
                LIBRARY.brigade_comm_abort(self._comm, reason.encode())

    def close(self):
        """Leave."""
        self._lane.close()
        with self._lock:
            comm, self._comm = self._comm, None
        if comm is not None:
            LIBRARY.brigade_comm_destroy(comm)

    def _failure(self, what):
        way = "to" if self._sends else "from"
        between = f"a message {way} rank {self._peer}"
        return dist.DistBackendError(f"brigade, {self._who}: {between}: {what}")

    def _check(self, result):
        """Raise what a call failed with. Within the channel the sender is rank 0 and the receiver
        rank 1, whoever they are in the group, so what the library says of ranks is not for all.
        """
        if result == SUCCESS:
            return
        peer, moved = f"rank {self._peer}", "took" if self._sends else "sent"
        sentence = LIBRARY.brigade_last_error().decode()
        sentences = {
            PEER_LOST: f"{peer} {in_words(result)}",
            PEER_LEFT: f"{peer} has left: did its group end early?",
            TIMEOUT: f"{peer} {moved} nothing within {self._timeout_ms:.0f} ms: does it make the "
            "matching call?",
        }
        ends = (self._rank, self._peer) if self._sends else (self._peer, self._rank)
        between = (
            f"{sentence} (said of these two alone: its rank 0 is rank {ends[0]}, who sends, its "
            f"rank 1 is rank {ends[1]}, who receives)"
        )
        raise self._failure(sentences.get(result, between))

    def _check_world(self):
        """Fail if the peer will not come any more."""
        self._check(fate_of(self._world, self._peer))
        if end := end_of_world(self._world, self._size):
            raise self._failure(f"the group has ended: {end}")

    def _await(self, store, key):
        deadline, pause = time.monotonic() + self._timeout_ms / 1000, 0.0001
        while not store.check([key]):
            if self._stopped:
                raise self._failure("the group ended before the two met")
            if time.monotonic() > deadline:
                self._check(TIMEOUT)
            self._check_world()
            time.sleep(pause)
            pause = min(2 * pause, 0.005)

    def _meet(self):
        if self._comm is not None:
            return
        # The store may have gone with the peer, and does not know that.
        self._check_world()
        with at_store(self._who):
            self._meet_at(self._store.get())

    def _meet_at(self, store):
        """The receiver says that it is there, then the sender draws an id."""
        ready, drawn_at = self._key + "/ready", self._key + "/id"
        if self._sends:
            self._await(store, ready)
            drawn = unique_id()
            store.set(drawn_at, drawn)
        else:
            store.set(ready, b"\1")
            self._is_listening = True
            self._await(store, drawn_at)
            self._is_listening = False
            drawn = store.get(drawn_at)
        joined, comm = join(drawn, 0 if self._sends else 1, 2, self._timeout_ms)
        self._check(joined)
        with self._lock:
            self._comm = comm
            if self._stopped:
                LIBRARY.brigade_comm_abort(comm, b"the group has ended")

    def _move(self, name, memory, count):
        function = getattr(LIBRARY, "brigade_" + name)
        self._check(function(memory, count, BYTES, 1 if self._sends else 0, self._comm, None))

    def _fetch(self, count):
        memory = bytearray(count)
        view = (ctypes.c_uint8 * count).from_buffer(memory)
        self._move("recv", view, count)
        return memory

    def _take_one(self):
        """Receive until one of the posted messages is there."""
        try:
            self._meet()
            while not self._deliver_kept():
                with self._lock:
                    if not self._posted:
                        # They failed with an earlier one.
                        return
                self._is_listening = True
                tag, count, *kind = HEADER.unpack(self._fetch(HEADER.size))
                self._is_listening = False
                posted = self._claim(tag)
                if posted is None:
                    kept = (kind, self._fetch(count))
                    with self._lock:
                        self._kept[tag].append(kept)
                    continue
                work, run, _tag = posted
                return work.carry_out(lambda: self._finish(run, kind, count))
        except BaseException as error:
            with self._lock:
                posted, self._posted = self._posted, deque()
            for work, _run, _tag in posted:
                work.settle(error)

    def _claim(self, tag):
        """Who gets the message with this tag that is there now; nobody yet, perhaps: one with the
        same tag that was kept goes first, to whoever wants it by now.
        """
        with self._lock:
            return None if self._kept.get(tag) else self._first(lambda wanted: wanted == tag)

    def _first(self, fits):
        """The first posted one whose tag fits, which is no longer posted."""
        for at, one in enumerate(self._posted):
            if fits(one[2]):
                del self._posted[at]
                return one
        return None

    def _finish(self, run, kind, count):
        if kind == [run.dtype, run.each] and count == run.data.nbytes:
            self._move("recv", run.address, count)
            return run.bring_back()
        self._fetch(count)
        self._check_fit(run, kind, count)

    def _take_kept(self):
        """Who gets a message that was kept, and that: work, run, kind and bytes."""
        posted = self._first(lambda tag: self._kept.get(tag))
        if posted is None:
            return None
        work, run, tag = posted
        return (work, run, *self._kept[tag].popleft())

    def _deliver_kept(self):
        with self._lock:
            delivery = self._take_kept()
        if delivery is not None:
            self._hand_over(*delivery)
        return delivery is not None

    def _hand_over(self, work, run, kind, memory):
        def body():
            self._check_fit(run, kind, len(memory))
            if memory:
                ctypes.memmove(run.address, bytes(memory), len(memory))
            run.bring_back()

        work.carry_out(body)

    def _check_fit(self, run, kind, count):
        """Whether a message fits its tensor."""
        dtype, each = kind
        if kind != [run.dtype, run.each]:
            came = f"{NAMES[dtype]}{f' by {each}' * (each > 1)}"
            raise self._failure(f"one of {came} came for a tensor of {run.type}")
        if count != run.data.nbytes:
            raise self._failure(f"one of {count} bytes came for a tensor of {run.data.nbytes}")
