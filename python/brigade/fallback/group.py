"""A process group: collectives in their order, on their caller's thread where it waits for them."""

import os
import threading
import time

import torch.distributed as dist
from torch._C._distributed_c10d import Backend

from ..library import LIBRARY
from .channel import Channel, OwnStore, at_store, check, milliseconds
from .fitting import check_fit, check_timeout, counts_of
from .gathering import go_on_without, meet
from .naming import named, who_is
from .rollcall import RollCall
from .tensors import Run, apart, reduction, rows, single
from .works import Batch, Lane, Work, wait_for_those_that_follow

# How long calls that go on at the end of a group may take. [seconds]
GRACE = 10
# And receives for which nothing has come yet: nobody knows whether it ever will. [seconds]
PATIENCE = 1
# Of torch's shrink_group: whatever goes on in the group is to fail.
SHRINK_ABORT = 1
# torch keeps no reference to a backend in Python.
GROUPS = set()


def create(store, rank, size, timeout, ranks):
    """Meet the other ranks in the store. `ranks` are theirs in the default group; none for that."""
    place = store, who_is(rank, ranks), rank, size, milliseconds(timeout)
    return Group(store, rank, size, timeout, ranks, *meet(*place, acquaintance(ranks)))


def acquaintance(ranks):
    """The largest group of this process with all of these ranks of the default group: its handle,
    and their numbers there."""
    known = [group for group in GROUPS if group._era == Group.eras]
    wholes = [group for group in known if ranks and set(ranks) <= set(group._ranks)]
    if wholes:
        whole = max(wholes, key=lambda group: len(group._ranks))
        return whole._comm, [whole._ranks.index(rank) for rank in ranks]
    return None


def end_all(why, _has_exit):
    """End the groups of this process; of a reason the others hear, as late as Python can: now."""
    for group in list(GROUPS):
        # In a child of fork some are its parent's.
        if why and group._maker == os.getpid():
            group.abort(why)
        group.shutdown()
    wait_for_those_that_follow(GRACE)


class Group(Backend):
    """torch's Backend over brigade.h. What it does not override torch refuses."""

    eras = 0  # Default groups that there have been: those with the same one number ranks alike.

    def __init__(self, store, rank, size, timeout, ranks, key, comm):
        super().__init__(rank, size)
        self._store, self._rank, self._size = OwnStore(store), rank, size
        self._timeout, self._timeout_ms = timeout, milliseconds(timeout)
        self._who, self._options = who_is(rank, ranks), Backend.Options("brigade", timeout)
        # Theirs in the default group, unless it is that.
        self._ranks, self._is_first = ranks or list(range(size)), not ranks
        # Where its messages meet in the store, and who they are.
        self._shared, self._key, self._comm = store, key, comm
        self._lane, self._lock = Lane(), threading.Lock()
        self._channels, self._batch, self._sequence, self._maker = {}, None, 0, os.getpid()
        Group.eras += self._is_first
        self._roll_calls, self._has_ended, self._era = 0, False, Group.eras
        GROUPS.add(self)

    # torch asks for each of these, without end where a subclass does not say.
    supports_splitting = property(lambda self: False)
    # Calls that other threads make meanwhile torch would only note.
    supports_coalescing = property(lambda self: False)
    supports_shrinking = property(lambda self: True)
    supports_reconfigure = property(lambda self: False)
    supports_window = property(lambda self: False)
    _supports_time_estimate = property(lambda self: False)
    options = property(lambda self: self._options)

    def supports_tensor_alloc(self, _device):
        return False

    def getBackendName(self):
        return "brigade"

    def _get_sequence_number_for_group(self):
        return self._sequence

    @named("set_timeout")
    def set_timeout(self, timeout):
        check_timeout(timeout, self._timeout_ms)
        self._options = Backend.Options("brigade", timeout)

    def allreduce(self, tensors, opts):
        return self.allreduce_coalesced([single(tensors)], opts)

    @named("all_reduce")
    def allreduce_coalesced(self, tensors, opts):
        runs = [Run([tensor]) for tensor in tensors]
        ops = [reduction(opts.reduceOp, run.type) for run in runs]

        def body():
            for run, op in zip(runs, ops):
                self._call("all_reduce", run.address, run.address, run.count, run.dtype, op)
                run.bring_back()

        return self._submit(body, opts, tensors)

    @named("reduce")
    def reduce(self, tensors, opts):
        run, root = Run([single(tensors)]), self._check_peer(opts.rootRank)
        op = reduction(opts.reduceOp, run.type)

        def body():
            target = run.address if self._rank == root else None
            self._call("reduce", run.address, target, run.count, run.dtype, op, root)
            if self._rank == root:
                run.bring_back()

        return self._submit(body, opts, tensors)

    @named("broadcast")
    def broadcast(self, tensors, opts):
        run, root = Run([single(tensors)]), self._check_peer(opts.rootRank)

        def body():
            self._call("broadcast", run.address, run.address, run.count, run.dtype, root)
            if self._rank != root:
                run.bring_back()

        return self._submit(body, opts, tensors)

    def allgather(self, outputs, inputs, opts):
        return self._gather_all([(single(outputs), single(inputs))], opts)

    def allgather_coalesced(self, outputs, inputs, opts):
        lists = [[of_rank[at] for of_rank in outputs] for at in range(len(inputs))]
        return self._gather_all(list(zip(lists, inputs)), opts)

    def all_gather_single(self, output, input, opts):
        return self._gather_all([([output], input)], opts)

    def all_gather_single_coalesced(self, outputs, inputs, opts):
        return self._gather_all([([output], input) for output, input in zip(outputs, inputs)], opts)

    @named("all_gather")
    def _gather_all(self, pairs, opts):
        parts = []
        for outputs, input in pairs:
            source, target = apart([input], outputs), Run(outputs, is_read=False)
            counts = target.counts()
            if len(counts) == 1:
                counts = [source.count] * self._size
            check_fit(source, target, counts[self._rank : self._rank + 1], counts)
            parts.append((source, target, counts_of(counts, self._size)))

        def body():
            for source, target, counts in parts:
                self._call_by(counts, "all_gather", source, target)
                target.bring_back()

        return self._submit(body, opts, [output for outputs, _ in pairs for output in outputs])

    @named("gather")
    def gather(self, outputs, inputs, opts):
        root, source = self._check_peer(opts.rootRank), Run([single(inputs)])
        target, counts = None, [source.count] * self._size
        if self._rank == root:
            source = apart(inputs, single(outputs))
            target = Run(single(outputs), is_read=False)
            counts = target.counts()
            check_fit(source, target, counts[root : root + 1], counts)
        counts = counts_of(counts, self._size)

        def body():
            address = None if target is None else target.address
            self._call("gather_v", source.address, address, counts, source.dtype, root)
            if target is not None:
                target.bring_back()

        return self._submit(body, opts, [] if target is None else single(outputs))

    @named("scatter")
    def scatter(self, outputs, inputs, opts):
        root, target = self._check_peer(opts.rootRank), Run([single(outputs)], is_read=False)
        source, counts = None, [target.count] * self._size
        if self._rank == root:
            source = apart(single(inputs), outputs)
            counts = source.counts()
            check_fit(target, source, counts[root : root + 1], counts)
        counts = counts_of(counts, self._size)

        def body():
            address = None if source is None else source.address
            self._call("scatter_v", address, target.address, counts, target.dtype, root)
            target.bring_back()

        return self._submit(body, opts, outputs)

    def reduce_scatter(self, outputs, inputs, opts):
        return self._scatter_reduced([(single(outputs), single(inputs))], opts)

    def reduce_scatter_single(self, output, input, opts):
        return self._scatter_reduced([(output, [input])], opts)

    def reduce_scatter_single_coalesced(self, outputs, inputs, opts):
        pairs = [(output, [input]) for output, input in zip(outputs, inputs)]
        return self._scatter_reduced(pairs, opts)

    @named("reduce_scatter")
    def _scatter_reduced(self, pairs, opts):
        parts = []
        for output, inputs in pairs:
            source, target = apart(inputs, [output]), Run([output], is_read=False)
            counts = source.counts()
            if len(counts) == 1:
                counts = [target.count] * self._size
            check_fit(target, source, counts[self._rank : self._rank + 1], counts)
            op = reduction(opts.reduceOp, source.type)
            parts.append((source, target, counts_of(counts, self._size), op))

        def body():
            for source, target, counts, op in parts:
                self._call_by(counts, "reduce_scatter", source, target, op)
                target.bring_back()

        return self._submit(body, opts, [output for output, _ in pairs])

    @named("all_to_all")
    def all_to_all_single(self, output, input, received, sent, opts):
        source, target = apart([input], [output]), Run([output], is_read=False)
        counts = [rows(tensor, splits, source.each, self._size)
                  for tensor, splits in ((input, sent), (output, received))]
        return self._all_to_all(source, target, *counts, opts, [output])

    @named("all_to_all")
    def alltoall(self, outputs, inputs, opts):
        source, target = apart(inputs, outputs), Run(outputs, is_read=False)
        return self._all_to_all(source, target, source.counts(), target.counts(), opts, outputs)

    def _all_to_all(self, source, target, sent, received, opts, outputs):
        check_fit(source, target, [source.count], [target.count])
        sent, received = counts_of(sent, self._size), counts_of(received, self._size)

        def body():
            place = source.address, sent, target.address, received
            self._call("all_to_all_v", *place, source.dtype)
            target.bring_back()

        return self._submit(body, opts, outputs)

    @named("barrier")
    def barrier(self, opts):
        return self._submit(lambda: self._call("barrier"), opts, [])

    def monitored_barrier(self, opts, wait_all_ranks=False):
        # It may wait for longer than calls do: it is none of the communicator's.
        is_given = opts.timeout.total_seconds() >= 0
        timeout = (opts.timeout if is_given else self._options._timeout).total_seconds()
        self._roll_calls += 1
        key = f"{self._key}/roll-call/{self._roll_calls}"
        with at_store(self._who):
            place = self._store.get(), key, self._who, self._comm, self._rank, self._size
            RollCall(*place, timeout).hold(wait_all_ranks)

    @named("send")
    def send(self, tensors, peer, tag):
        channel, run = self._channel(peer, True), Run(tensors)
        work = self._begin(tensors)
        channel.send(work, run, tag)
        return work

    @named("recv")
    def recv(self, tensors, peer, tag):
        channel, run = self._channel(peer, False), Run(tensors, is_read=False)
        work = self._begin(tensors)
        channel.receive(work, run, tag)
        return work

    def start_coalescing(self):
        # torch does not end one in which a call was refused.
        with self._lock:
            abandoned, self._batch = self._batch, Batch()
        if abandoned is not None:
            abandoned.ended()

    def end_coalescing(self):
        with self._lock:
            batch, self._batch = self._batch, None
        if batch is None:
            raise ValueError("no calls of this group are being coalesced")
        batch.ended()
        return batch

    def abort(self, why="torch aborted the group"):
        try:
            if self._comm is not None:
                check(LIBRARY.brigade_comm_abort(self._comm, why.encode()), self._who)
        finally:
            with self._lock:
                channels = list(self._channels.values())
            for channel in channels:
                channel.abort(why)

    @named("shrink_group")
    def shrink(self, excluded, flags=0, opts=None):
        """The others of these ranks in a group of their own, whatever has become of this one. They
        meet over its wires, not in the store.
        """
        gone = {self._check_peer(rank) for rank in excluded}
        if flags & SHRINK_ABORT:
            self.abort()
        timeout = self._timeout if opts is None else opts._timeout
        joined = go_on_without(gone, self._comm, self._key, self._who, milliseconds(timeout))
        left = [rank for rank in range(self._size) if rank not in gone]
        # Of the default group torch numbers the ranks anew.
        ranks = [] if self._is_first else [self._ranks[rank] for rank in left]
        return Group(self._shared, left.index(self._rank), len(left), timeout, ranks, *joined)

    def shutdown(self):
        """What was begun has some time to end; then whatever still waits is made to fail."""
        if self._maker != os.getpid():
            # A child of fork has none of the threads, and what they hold locked stays so.
            return GROUPS.discard(self)
        with self._lock:
            if self._has_ended:
                return
            # Those that send are first.
            self._has_ended = True
            channels = [channel for _key, channel in sorted(self._channels.items())]
        begin = time.monotonic()
        if not self._lane.drain(GRACE):
            LIBRARY.brigade_comm_abort(self._comm, b"the group ended while calls went on")
        for channel in channels:
            if not channel.drain(begin + PATIENCE, begin + GRACE):
                channel.abort("the group ended while messages were awaited")
        self._lane.close()
        for channel in channels:
            channel.close()
        GROUPS.discard(self)
        comm, self._comm = self._comm, None
        LIBRARY.brigade_comm_destroy(comm)

    def _submit(self, body, opts, outputs):
        check_timeout(getattr(opts, "timeout", None), self._timeout_ms)
        is_async = getattr(opts, "asyncOp", True)
        with self._lock:
            is_async = is_async or self._batch is not None
        work = self._begin(outputs)
        if is_async:
            self._lane.post(lambda: work.carry_out(body))
        else:
            self._lane.do(lambda: work.carry_out(body))
        return work

    def _begin(self, outputs):
        if self._maker != os.getpid():
            raise dist.DistBackendError("this group belongs to the process that forked this one")
        with self._lock:
            if self._has_ended:
                raise dist.DistBackendError("this group has been shut down")
            self._sequence += 1
            if self._batch is not None:
                self._batch.add()
            return Work(list(outputs), self._batch)

    def _call_by(self, counts, name, source, target, *more):
        """The call for blocks that are alike, where they are: as the backend in C++ makes it."""
        is_even = len(set(counts)) == 1
        name, how = (name, counts[0]) if is_even else (f"{name}_v", counts)
        self._call(name, source.address, target.address, how, source.dtype, *more)

    def _call(self, name, *arguments):
        check(getattr(LIBRARY, "brigade_" + name)(*arguments, self._comm, None), self._who)

    def _channel(self, peer, sends):
        if self._check_peer(peer) == self._rank:
            does = "send to" if sends else "receive from"
            raise ValueError(f"rank {peer} cannot {does} itself")
        with self._lock:
            channel = self._channels.get((not sends, peer))
            if channel is None:
                ends = (self._rank, peer) if sends else (peer, self._rank)
                key = "{}/{}-{}".format(self._key, *ends)
                place = self._store, key, self._who, self._rank, peer, sends, self._timeout_ms
                channel = Channel(*place, self._comm, self._size)
                self._channels[not sends, peer] = channel
            return channel

    def _check_peer(self, peer):
        if not 0 <= peer < self._size:
            raise ValueError(f"rank {peer} of a group of {self._size}")
        return peer

