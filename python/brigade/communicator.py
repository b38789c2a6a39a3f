"""A communicator on buffers: NumPy arrays, array.array, bytearray, memoryview.

Every call takes C-contiguous buffers, whose type says what the elements are; `dtype` names types
that buffers cannot ("bfloat16", or "bf16", over two-byte items, say). With wait=False a call
returns a Work at once; in a brigade.group() it is only listed. Results are written to the buffers
that are passed.
"""

import atexit
import contextlib
import sys
import weakref
from ctypes import byref, c_int, c_size_t, c_void_p, create_string_buffer, sizeof

from . import groups, signals
from .library import (
    INVALID_ARGUMENT, LIBRARY, Config, Error, Id, Setting, Span, Stats, check, operator, several,
    small, whole,
)
from .work import Work

# Those that have not been closed.
OPEN = weakref.WeakSet()
# How much of an exception the others hear.
REASON_LENGTH = 500


def version():
    """The version of libbrigade, as (major, minor, patch)."""
    number = LIBRARY.brigade_version()
    return number // 10000, number // 100 % 100, number % 100


def unique_id():
    """Bytes that one process draws and brings to all; they let a rank in, so keep them secret."""
    drawn = Id()
    check(LIBRARY.brigade_get_unique_id(byref(drawn)))
    return bytes(drawn.bytes)


def config_of(settings):
    """A config, and what it points to: timeout_ms=5000 is BRIGADE_TIMEOUT_MS=5000."""
    rows = [
        Setting(f"BRIGADE_{name.upper()}".encode(), str(value).encode())
        for name, value in settings.items()
    ]
    array = (Setting * len(rows))(*rows)
    return Config(sizeof(Config), array if rows else None, len(rows)), array


def id_of(unique):
    """The unique id that these bytes are."""
    try:
        view = memoryview(unique)
    except TypeError:
        kind = type(unique).__name__
        raise TypeError(f"unique has to be bytes, and is of type {kind}") from None
    with view:
        if view.nbytes != sizeof(Id):
            raise ValueError(f"unique has {view.nbytes} bytes, and a unique id {sizeof(Id)}")
    return Id.from_buffer_copy(unique)


class Communicator:
    """A group of ranks that make the same calls in the same order."""

    def __init__(self, handle, is_part=False):
        self._handle, self._works = handle, weakref.WeakSet()
        self._is_part = is_part
        OPEN.add(self)
        signals.hear()
        rank, size = c_int(), c_int()
        check(LIBRARY.brigade_comm_rank(handle, byref(rank)))
        check(LIBRARY.brigade_comm_size(handle, byref(size)))
        self.rank, self.size = rank.value, size.value

    @classmethod
    def from_env(cls, **settings):
        """Join the world of brigade run, torchrun, mpirun or srun; alone without any of them."""
        handle, (config, _held) = c_void_p(), config_of(settings)
        signals.join(LIBRARY.brigade_comm_init_from_env, handle, byref(config))
        return cls(handle)

    @classmethod
    def from_id(cls, unique, rank, size, **settings):
        """Join those who have the same unique id."""
        rank, size = small(rank, "rank"), small(size, "size")
        handle, (config, _held) = c_void_p(), config_of(settings)
        drawn = id_of(unique)
        function = LIBRARY.brigade_comm_init_rank_config
        signals.join(function, handle, size, drawn, rank, byref(config))
        return cls(handle)

    def __repr__(self):
        state = "closed" if self._handle is None else f"rank {self.rank} of {self.size}"
        return f"<brigade.Communicator: {state}>"

    def __reduce__(self):
        raise TypeError(
            "a communicator is of its process: another one makes its own, by from_env or from_id"
        )

    def split(self, color, key=0):
        """The communicator of those with the same color, in the order of `key`; None for -1."""
        color, key, handle = small(color, "color"), small(key, "key"), c_void_p()
        signals.call(LIBRARY.brigade_comm_split, self._open(), color, key, byref(handle))
        return Communicator(handle, is_part=True) if handle else None

    def shrink(self, excluded):
        """The others of these ranks, in a world of their own, whatever became of those."""
        ranks = [small(rank, "excluded") for rank in several(excluded, "excluded", "ranks")]
        listed, comm, handle = (c_int * len(ranks))(*ranks), self._open(), c_void_p()

        def function(made):
            return LIBRARY.brigade_comm_shrink(comm, listed, len(ranks), made, None)

        signals.join(function, handle)
        return Communicator(handle)

    def grow(self, size, unique=None):
        """With newcomers behind these ranks, `size` in all, who call `from_id`; one or more of
        these give the unique id of that world."""
        size, comm, handle = small(size, "size"), self._open(), c_void_p()
        drawn = None if unique is None else byref(id_of(unique))

        def function(made):
            return LIBRARY.brigade_comm_grow(comm, size, drawn, made, None)

        signals.join(function, handle)
        return Communicator(handle)

    def all_reduce(self, buffer, op="sum", *, dtype=None, wait=True):
        """Fold the buffers of all ranks, in place."""
        span = Span(buffer, dtype, writable=True)
        place = span.address, span.address, span.count
        return self._run("all_reduce", [span], *place, span.dtype, operator(op), wait=wait)

    def reduce(self, buffer, root=0, op="sum", *, dtype=None, wait=True):
        """Fold the buffers of all ranks into that of `root`."""
        root = small(root, "root")
        span = Span(buffer, dtype, writable=self.rank == root)
        place = span.address, span.address, span.count
        return self._run("reduce", [span], *place, span.dtype, operator(op), root, wait=wait)

    def broadcast(self, buffer, root=0, *, dtype=None, wait=True):
        """Every rank gets the buffer of `root`."""
        root = small(root, "root")
        span = Span(buffer, dtype, writable=self.rank != root)
        place = span.address, span.address, span.count
        return self._run("broadcast", [span], *place, span.dtype, root, wait=wait)

    def reduce_scatter(self, source, target, op="sum", *, dtype=None, wait=True):
        """Fold the sources of all ranks; rank r gets the r-th part of it."""
        spans = self._scattering(source, target, dtype)
        place = spans[0].address, spans[1].address, spans[1].count
        return self._run("reduce_scatter", spans, *place, spans[0].dtype, operator(op), wait=wait)

    def all_gather(self, source, target, *, dtype=None, wait=True):
        """Every rank gets the sources of all, one behind the other."""
        spans = self._gathering(source, target, dtype)
        place = spans[0].address, spans[1].address, spans[0].count
        return self._run("all_gather", spans, *place, spans[0].dtype, wait=wait)

    def all_to_all(self, source, target, sent=None, received=None, *, dtype=None, wait=True):
        """Rank r gets the r-th part of every source; `sent` and `received` are uneven counts."""
        if (sent is None) != (received is None):
            given, missing = ("sent", "received") if received is None else ("received", "sent")
            raise ValueError(f"`{given}` is given without `{missing}`")
        if sent is None:
            spans = self._of_one_type(source, target, dtype)
            count, targets = spans[0].count, spans[1].count
            if count != targets:
                raise ValueError(
                    f"target has {targets} elements, and has to have {count}, as source has"
                )
            each, rest = divmod(count, self.size)
            if rest:
                raise ValueError(
                    f"source has {count} elements, which are no equal parts for {self.size} ranks"
                )
            place = spans[0].address, spans[1].address, each
            return self._run("all_to_all", spans, *place, spans[0].dtype, wait=wait)
        spans = self._of_one_type(source, target, dtype)
        sent = self._counts(sent, "sent", spans[0].count)
        received = self._counts(received, "received", spans[1].count)
        place = spans[0].address, sent, spans[1].address, received
        return self._run("all_to_all_v", spans, *place, spans[0].dtype, wait=wait)

    def gather(self, source, target=None, root=0, *, dtype=None, wait=True):
        """`root` gets the sources of all in its target."""
        root = small(root, "root")
        spans = self._rooted(source, target, root, dtype)
        place = spans[0].address, spans[-1].address, spans[0].count
        return self._run("gather", spans, *place, spans[0].dtype, root, wait=wait)

    def scatter(self, source, target, root=0, *, dtype=None, wait=True):
        """Rank r gets the r-th part of the source of `root`; that of the others may be None."""
        root = small(root, "root")
        if self.rank == root:
            spans = self._scattering(source, target, dtype)
        else:
            mine = Span(target, dtype, writable=True, argument="target")
            spans = [mine, mine]
        place = spans[0].address, spans[1].address, spans[1].count
        return self._run("scatter", spans, *place, spans[1].dtype, root, wait=wait)

    def barrier(self, *, wait=True):
        """Wait until every rank has come here."""
        return self._run("barrier", [], wait=wait)

    def send(self, buffer, peer, *, dtype=None, wait=True):
        """Send to one rank, which must receive as much; messages that cross go in a group()."""
        peer = small(peer, "peer")
        span = Span(buffer, dtype)
        return self._run("send", [span], span.address, span.count, span.dtype, peer, wait=wait)

    def recv(self, buffer, peer, *, dtype=None, wait=True):
        """Receive from one rank; messages that cross go in a group()."""
        peer = small(peer, "peer")
        span = Span(buffer, dtype, writable=True)
        return self._run("recv", [span], span.address, span.count, span.dtype, peer, wait=wait)

    def stats(self):
        """Payload bytes sent, and calls carried out."""
        stats = Stats(sizeof(Stats))
        check(LIBRARY.brigade_comm_stats(self._open(), byref(stats)))
        return {"sent_bytes": stats.sent_bytes, "calls": stats.calls}

    def describe(self):
        """What carries the bytes to whom, and by which algorithm each collective goes, by size."""
        text = create_string_buffer(1 << 16)
        check(LIBRARY.brigade_comm_describe(self._open(), text, len(text)))
        return text.value.decode()

    def abort(self, reason=""):
        """End the world on all its ranks."""
        if not isinstance(reason, str):
            raise TypeError(f"reason has to be a str, and is of type {type(reason).__name__}")
        check(LIBRARY.brigade_comm_abort(self._open(), reason.encode()))

    def close(self):
        """Leave the group, once calls on their way have ended."""
        OPEN.discard(self)
        handle, self._handle = self._handle, None
        if handle:
            check(LIBRARY.brigade_comm_destroy(handle))

    def __enter__(self):
        return self

    def __exit__(self, kind, error, _traceback):
        # Some say that all is well.
        is_well = kind is GeneratorExit or kind is SystemExit and error.code in (None, 0)
        if kind is not None and not is_well:
            self._give_up(error)
        self.close()

    def _give_up(self, error):
        """An exception ends what is done with it, and the others hear which. Of a part the whole may
        go on, unless calls of it are on their way, for which nobody waits any more.
        """
        is_over = not self._is_part or any(not work.done() for work in list(self._works))
        if self._handle and is_over:
            LIBRARY.brigade_comm_abort(self._handle, words_of(error))

    def __del__(self):
        if getattr(self, "_handle", None):
            LIBRARY.brigade_comm_destroy(self._handle)

    def _open(self):
        if self._handle is None:
            raise Error(INVALID_ARGUMENT, "this communicator has been closed")
        return self._handle

    def _run(self, name, spans, *arguments, wait):
        function = getattr(LIBRARY, "brigade_" + name)
        if wait:
            signals.call(function, *arguments, self._open(), None)
            groups.note(self, spans)
            return None
        groups.refuse_work()
        handle = c_void_p()
        check(function(*arguments, self._open(), byref(handle)))
        work = Work(handle, spans)
        self._works.add(work)
        return work

    def _counts(self, counts, name, total):
        counts = several(counts, name, "counts, one for each rank")
        numbers = [whole(count, f"a count of {name}") for count in counts]
        if len(numbers) != self.size or sum(numbers) != total or min(numbers) < 0:
            raise ValueError(
                f"{name} is {numbers}, and has to be {self.size} counts, one for each rank, that "
                f"sum to {total}"
            )
        return (c_size_t * self.size)(*numbers)

    def _of_one_type(self, source, target, dtype):
        spans = [
            Span(source, dtype, argument="source"),
            Span(target, dtype, writable=True, argument="target"),
        ]
        if spans[0].dtype != spans[1].dtype:
            source, target = (span.type_name for span in spans)
            raise ValueError(
                f"source has elements of type {source} and target of type {target}: both have to "
                "be of one type"
            )
        return spans

    def _gathering(self, source, target, dtype):
        """One block in, a block of each rank out."""
        spans = self._of_one_type(source, target, dtype)
        self._require_blocks("target", spans[1], "source", spans[0])
        return spans

    def _scattering(self, source, target, dtype):
        """A block of each rank in, one block out."""
        spans = self._of_one_type(source, target, dtype)
        self._require_blocks("source", spans[0], "target", spans[1])
        return spans

    def _require_blocks(self, all_name, all_of_it, one_name, one):
        wanted = self.size * one.count
        if all_of_it.count != wanted:
            ranks = "1 rank" if self.size == 1 else f"{self.size} ranks"
            raise ValueError(
                f"{all_name} has {all_of_it.count} elements, and has to have {wanted} ({ranks} x "
                f"{one.count} of {one_name})"
            )

    def _rooted(self, source, target, root, dtype):
        if self.rank == root:
            return self._gathering(source, target, dtype)
        span = Span(source, dtype, argument="source")
        return [span, span]


def words_of(error):
    """An exception as the others hear of it."""
    words = type(error).__name__
    with contextlib.suppress(Exception):
        words = f"{words}: {error}" if str(error) else words
    return words[:REASON_LENGTH].encode(errors="replace")


@atexit.register
def give_up_all():
    """What an exception has ended the program in waits for nobody."""
    error = None if hasattr(sys, "ps1") else getattr(sys, "last_value", None)
    if error is not None:
        for comm in list(OPEN):
            comm._give_up(error)
