"""Groups of those who are left: after a death, without one who lives, and when they disagree."""

import datetime
import os
import signal
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from .case import barrier_before_the_end_of, begin, case, end_with_the_others, refused

SHRINK_ABORT = 1


def total(group=None):
    """What the ranks of a group count together, each for one."""
    tensor = torch.ones(1)
    dist.all_reduce(tensor, group=group)
    return tensor.item()


@case(bare=True, worlds=(4,), backends=("brigade",), ends={2: -signal.SIGKILL}, quick=True)
def the_default_group_after_a_death(backend, rank, world):
    begin(backend, 60)
    # What is known there of rank 2 is of another one than who has that number later.
    twin = dist.new_group()
    assert total() == world and total(twin) == world
    barrier_before_the_end_of(2, rank, world)
    if rank == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    error = str(refused(dist.all_reduce, torch.ones(1 << 20), kind=dist.DistBackendError))
    assert "rank 2 is lost" in error, error
    since = time.monotonic()
    left = dist.shrink_group([2])
    assert time.monotonic() - since < 20
    assert left is dist.group.WORLD and dist.get_backend() == "brigade"
    # torch would note it as gloo's.
    assert left.name() == dist.new_group([rank - (rank > 2)], use_local_synchronization=True).name()
    me = rank - (rank > 2)
    assert dist.get_rank() == me and dist.get_world_size() == 3 and total() == 3

    # All that a default group can: messages, new groups, training, and once more.
    got = torch.empty(1)
    works = dist.batch_isend_irecv([
        dist.P2POp(dist.isend, torch.tensor([float(me)]), (me + 1) % 3),
        dist.P2POp(dist.irecv, got, (me + 2) % 3),
    ])
    for work in works:
        work.wait()
    assert got.item() == (me + 2) % 3
    last = dist.new_group([1, 2])
    if me > 0:
        assert total(last) == 2
    torch.manual_seed(me)
    model = DistributedDataParallel(torch.nn.Linear(3, 1))
    model(torch.full((1, 3), float(me))).sum().backward()
    assert torch.equal(model.module.weight.grad, torch.ones(1, 3))
    if me == 2:
        end_with_the_others(rank, [])
    dist.shrink_group([2])
    assert dist.get_world_size() == 2 and total() == 2
    end_with_the_others(rank, [1, 3])


@case(bare=True, worlds=(2,), backends=("brigade",), ends={1: -signal.SIGKILL}, quick=True)
def one_rank_alone(backend, rank, world):
    begin(backend, 60)
    dist.barrier()
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    dist.shrink_group([1])
    assert dist.get_world_size() == 1 and total() == 1
    os._exit(0)


@case(bare=True, worlds=(2,), backends=("brigade",), quick=True, needs_native=True)
def a_timeout_that_was_set_later(backend, rank, world):
    begin(backend, 60)
    limit = datetime.timedelta(seconds=7)
    dist.distributed_c10d._set_pg_timeout(limit, dist.group.WORLD)
    dist.barrier()
    if rank == 1:
        end_with_the_others(rank, [])
    left = dist.shrink_group([1])._get_backend(torch.device("cpu"))
    assert left.options._timeout == limit
    # It may be made longer again, up to that of the elder group.
    left.set_timeout(datetime.timedelta(seconds=60))
    assert total() == 1
    os._exit(0)


@case(worlds=(4,), backends=("brigade",), quick=True)
def a_group_without_one_who_lives(rank, world):
    ranks = [0, 1, 3]
    group = dist.new_group(ranks)
    if rank == 2:
        return
    me = dist.get_rank(group)
    if me == 1:
        # Who is not in it goes on with the old one until the others leave that.
        error = str(refused(dist.all_reduce, torch.ones(1), group=group, kind=RuntimeError))
        assert "has left" in error or "is lost" in error, error
        return
    left = dist.shrink_group([1], group)
    assert dist.get_rank(left) == me // 2 and total(left) == 2
    # The default group numbers them as before.
    tensor = torch.tensor([float(rank)])
    other = ranks[2 - me]
    if me == 0:
        dist.send(tensor, other, group=left)
    else:
        dist.recv(tensor, other, group=left)
        assert tensor.item() == other


@case(bare=True, backends=("brigade",), quick=True)
def what_goes_on_is_made_to_fail(backend, rank, world):
    begin(backend, 60)
    dist.barrier()
    if rank == world - 1:
        # It makes none of the calls that the others wait for.
        dist.distributed_c10d._get_default_store().wait(["ends/0"])
        end_with_the_others(rank, [])
    works = [dist.all_reduce(torch.ones(1), async_op=True) for _ in range(3)]
    receive = dist.irecv(torch.ones(1), world - 1)
    time.sleep(0.3)
    dist.shrink_group([world - 1], shrink_flags=SHRINK_ABORT)
    for work in [*works, receive]:
        refused(work.wait, kind=RuntimeError)
    assert total() == world - 1
    end_with_the_others(rank, range(1, world))


@case(bare=True, worlds=(4,), backends=("brigade",), ends={1: -signal.SIGKILL}, quick=True)
def who_is_gone_has_to_be_excluded(backend, rank, world):
    begin(backend, 60)
    barrier_before_the_end_of(1, rank, world)
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    refused(dist.all_reduce, torch.ones(1), kind=dist.DistBackendError)
    if rank == 3:
        end_with_the_others(rank, [])
    error = str(refused(dist.shrink_group, [3], kind=dist.DistBackendError))
    assert "shrink: rank 1 is lost" in error, error
    # Nothing is lost by that.
    dist.shrink_group([1, 3])
    assert total() == 2
    end_with_the_others(rank, [2, 3])


@case(bare=True, worlds=(4,), backends=("brigade",), quick=True)
def ranks_that_disagree(backend, rank, world):
    begin(backend, 3)
    dist.barrier()
    if rank == 3:
        end_with_the_others(rank, [])
    since = time.monotonic()
    refused(dist.shrink_group, [3] if rank != 1 else [2, 3], kind=dist.DistBackendError)
    assert time.monotonic() - since < 20
    # The old group is still there.
    assert dist.get_world_size() == 4
    end_with_the_others(rank, [1, 2, 3])
