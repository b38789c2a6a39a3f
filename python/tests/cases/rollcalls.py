"""Barriers that name who has not come."""

import datetime
import os
import signal
import time

import torch
import torch.distributed as dist

from .case import barrier_before_the_end_of, begin, case, end_with_the_others, refused

BRIEF = datetime.timedelta(seconds=1.5)


@case(quick=True)
def all_come(rank, world):
    for turn in range(3):
        time.sleep(0.1 * (rank == turn % world))
        dist.monitored_barrier(timeout=datetime.timedelta(seconds=50))
    group = dist.new_group([world - 1, 0])
    dist.monitored_barrier(group, datetime.timedelta(seconds=50), wait_all_ranks=True)


@case(backends=("brigade",), quick=True)
def one_waits_for_longer_than_calls_do(rank, world):
    group = dist.new_group(timeout=datetime.timedelta(seconds=4))
    if rank == 1:
        time.sleep(5)
    dist.monitored_barrier(group, datetime.timedelta(seconds=50))


@case(worlds=(4,), quick=True, bare=True)
def all_who_do_not_come_are_named(backend, rank, world):
    begin(backend)
    if rank in (0, 2):
        since = time.monotonic()
        error = refused(
            dist.monitored_barrier, timeout=BRIEF, wait_all_ranks=True, kind=RuntimeError
        )
        # The time begins when rank 0 comes.
        assert (1 if rank == 0 else 0) < time.monotonic() - since < 20
        assert rank != 0 or "anks 1, 3" in str(error), error
    else:
        time.sleep(6)
    os._exit(0)


@case(backends=("brigade",), quick=True)
def the_group_goes_on_without_who_did_not_come(rank, world):
    if rank != 1:
        since = time.monotonic()
        error = str(refused(dist.monitored_barrier, timeout=BRIEF, kind=dist.DistBackendError))
        # The time begins when rank 0 comes.
        assert (1 if rank == 0 else 0) < time.monotonic() - since < 20
        says = "rank 0 says: " if rank else ""
        told = f"brigade, rank {rank}, monitored_barrier: {says}rank 1 did not come within 1500 ms"
        assert told in error, error
    dist.barrier()
    if rank == 1:
        # Who comes later hears what became of it.
        error = str(refused(dist.monitored_barrier, timeout=BRIEF, kind=dist.DistBackendError))
        assert "rank 0 says: rank 1 did not come within 1500 ms" in error, error
    dist.monitored_barrier(timeout=datetime.timedelta(seconds=50))
    tensor = torch.ones(1)
    dist.all_reduce(tensor)
    assert tensor.item() == world


@case(backends=("brigade",), quick=True)
def rank_0_does_not_come(rank, world):
    if rank > 0:
        error = str(refused(dist.monitored_barrier, timeout=BRIEF, kind=dist.DistBackendError))
        assert "rank 0 did not come within 1500 ms" in error, error
    dist.barrier()
    if rank == 0:
        # The others have gone on.
        error = str(refused(dist.monitored_barrier, timeout=BRIEF, kind=dist.DistBackendError))
        late = "rank 1" if world == 2 else "ranks 1, 2, 3"
        assert f"{late} did not come within 1500 ms" in error, error


@case(bare=True, backends=("brigade",), ends={1: -signal.SIGKILL}, quick=True)
def who_has_died_is_named_at_once(backend, rank, world):
    begin(backend)
    barrier_before_the_end_of(1, rank, world)
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    since = time.monotonic()
    error = str(refused(dist.monitored_barrier, kind=dist.DistBackendError))
    assert "rank 1 is lost, its process ended" in error, error
    assert time.monotonic() - since < 20
    end_with_the_others(rank, [other for other in range(world) if other != 1])
