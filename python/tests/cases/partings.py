"""First messages, from or to ranks that have gone: told at once, and by name."""

import os
import signal
import sys
import time

import torch
import torch.distributed as dist

from .case import LONG, barrier_before_the_end_of, begin, case, end_with_the_others, refused


def told_at_once(move, peer):
    """What a message to or from a peer fails with, long before its deadline."""
    since = time.monotonic()
    error = refused(lambda: move(torch.ones(1), peer).wait(), kind=dist.DistBackendError)
    assert time.monotonic() - since < 20, error
    return str(error)


@case(bare=True, backends=("brigade",), quick=True)
def a_first_message_from_or_to_a_rank_that_ended(backend, rank, world):
    begin(backend, 40)
    dist.barrier()
    if rank == 1:
        dist.destroy_process_group()
        sys.exit(0)
    error = told_at_once(dist.irecv, 1)
    assert "a message from rank 1: rank 1 has left" in error, error
    error = told_at_once(dist.isend, 1)
    assert "a message to rank 1: rank 1 has left" in error, error
    end_with_the_others(rank, [other for other in range(world) if other != 1])


@case(bare=True, backends=("brigade",), quick=True)
def what_nobody_sends_holds_up_no_end(backend, rank, world):
    begin(backend, 40)
    group, one, many = dist.new_group(), torch.ones(1), 5_000_000
    store = dist.distributed_c10d._get_default_store()
    if rank == 0:
        dist.send(one, 1, group=group)
        dist.barrier()
        time.sleep(2.5)
        got = torch.empty(many)
        dist.recv(got, 1)
        assert bool((got == 7).all())
    elif rank == 1:
        # In one of the channels a message has come before.
        dist.recv(one, 0, group=group)
        vain = [dist.irecv(one, peer, group) for peer in range(world) if peer != 1]
        since = time.monotonic()
        dist.destroy_process_group(group)
        assert time.monotonic() - since < 5, time.monotonic() - since
        # What others have yet to take is waited for all the same.
        sent = dist.isend(torch.full((many,), 7.0), 0)
        vain += [dist.irecv(one, 0)]
        dist.barrier()
        dist.destroy_process_group()
        sent.wait()
        for work in vain:
            refused(work.wait, kind=dist.DistBackendError)
    else:
        dist.barrier()
    store.set(f"ended/{rank}", "1")
    store.wait([f"ended/{other}" for other in range(world)], LONG)
    store.set(f"gone/{rank}", "1")
    if rank == 0:
        store.wait([f"gone/{other}" for other in range(world)], LONG)
    os._exit(0)


@case(bare=True, backends=("brigade",), ends={1: -signal.SIGKILL}, quick=True)
def a_first_message_from_or_to_a_rank_that_died(backend, rank, world):
    begin(backend, 40)
    barrier_before_the_end_of(1, rank, world)
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    error = told_at_once(dist.irecv, 1)
    assert "a message from rank 1: rank 1 is lost, its process ended" in error, error
    error = told_at_once(dist.isend, 1)
    assert "a message to rank 1: rank 1 is lost, its process ended" in error, error
    for other in range(world):
        if other not in (rank, 1):
            error = told_at_once(dist.irecv, other)
            assert f"from rank {other}: the group has ended: rank 1 is lost" in error, error
    end_with_the_others(rank, [other for other in range(world) if other != 1])


@case(bare=True, backends=("brigade",), quick=True)
def a_first_message_to_who_served_the_store(backend, rank, world):
    begin(backend, 40)
    barrier_before_the_end_of(0, rank, world)
    if rank == 0:
        os._exit(0)
    # By now nobody has to look for it.
    time.sleep(1)
    error = told_at_once(dist.isend, 0)
    assert "a message to rank 0: rank 0 is lost, its process ended" in error, error
    os._exit(0)


@case(bare=True, worlds=(4,), backends=("brigade",), quick=True)
def a_first_message_after_the_store_has_gone(backend, rank, world):
    begin(backend, 3)
    dist.barrier()
    if rank == 0:
        # The store is in this process.
        dist.destroy_process_group()
        os._exit(0)
    time.sleep(1)
    error = told_at_once(dist.isend, rank % 3 + 1)
    assert "the store at which ranks meet does not answer" in error, error
    dist.destroy_process_group()
