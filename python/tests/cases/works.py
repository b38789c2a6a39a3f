"""What goes on while its caller does something else."""

import datetime
import os
import time

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import OpType

from .case import case, refused


@case(quick=True, needs_native=True)
def many_at_a_time(rank, world):
    tensors = [torch.full((n % 5000 + 1,), float(rank + n)) for n in range(0, 40_000, 401)]
    works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
    # A blocking call keeps its place behind them.
    last = torch.ones(1)
    dist.all_reduce(last)
    assert last.item() == world
    for n, (tensor, work) in enumerate(zip(tensors, works)):
        assert work.wait() and work.is_completed() and work.is_success()
        wanted = sum(r + 401 * n for r in range(world))
        assert bool((tensor == wanted).all())


@case(quick=True, needs_native=True)
def polling(rank, world):
    tensor = torch.ones(1000)
    work = dist.all_reduce(tensor, async_op=True)
    deadline = time.monotonic() + 30
    while not work.is_completed():
        assert time.monotonic() < deadline
    assert tensor[0].item() == world
    assert work.exception() is None


@case(quick=True)
def futures(rank, world):
    tensor = torch.ones(4)
    work = dist.all_reduce(tensor, async_op=True)
    doubled = work.get_future().then(lambda future: 2 * future.value()[0])
    torch.testing.assert_close(doubled.wait(), torch.full((4,), 2.0 * world))
    assert work.get_future().value()[0] is not None
    blocking = dist.group.WORLD.allreduce([torch.ones(1)])
    blocking.wait()
    assert blocking.get_future().wait()[0].item() == world


@case(quick=True)
def a_future_has_ended_when_its_work_has(rank, world):
    for _ in range(200):
        work = dist.all_reduce(torch.ones(1), async_op=True)
        future = work.get_future()
        work.wait()
        assert future.done()
        work = dist.all_reduce(torch.ones(1), async_op=True)
        work.wait()
        assert work.get_future().done()


@case(backends=("brigade",), quick=True)
def a_callback_may_wait_for_its_own_work(rank, world):
    for _ in range(50):
        work = dist.all_reduce(torch.ones(1), async_op=True)
        follows = work.get_future().then(lambda _future: work.wait())
        assert work.wait() and follows.wait()


@case(backends=("brigade",), quick=True, needs_native=True)
def a_hook_hears_of_every_call(rank, world):
    group, heard = dist.new_group(), []

    def hear(info):
        heard.append(info)
        if len(heard) == 3:
            raise ValueError("of the hook")

    group._register_on_completion_hook(hear)
    refused(group._register_on_completion_hook, hear, kind=dist.DistBackendError)
    tensor = torch.ones(2)
    for _ in range(20):
        dist.all_reduce(tensor.fill_(1), group=group, async_op=True)
        dist.broadcast(tensor, 0, group=group)
    dist.all_reduce(tensor.fill_(1), group=group, async_op=True)
    group._wait_for_pending_works()
    assert tensor[0].item() == world
    assert [info.op_type for info in heard] == [
        OpType.ALLREDUCE if turn % 2 == 0 else OpType.BROADCAST for turn in range(41)
    ]
    assert [info.seq for info in heard] == list(range(1, 42))
    for before, after in zip(heard, heard[1:]):
        assert before.time_finished <= after.time_finished
    for info in heard:
        assert 0 <= info.active_duration.total_seconds() < 60
        assert info.time_started <= info.time_finished
    # What goes on at its end is told, too, and messages are.
    peer = (rank + world // 2) % world
    works = [dist.irecv(torch.ones(1), peer, group), dist.isend(torch.ones(1), peer, group)]
    dist.destroy_process_group(group)
    assert {info.op_type for info in heard[41:]} == {OpType.SEND, OpType.RECV}
    for work in works:
        work.wait()


@case(backends=("brigade",), needs_native=True)
def threads_of_callbacks_end(rank, world):
    def threads():
        return len(os.listdir("/proc/self/task"))

    dist.all_reduce(torch.ones(1), async_op=True).wait()
    before = threads()
    works = [dist.all_reduce(torch.ones(1), async_op=True) for _ in range(100)]
    futures = [work.get_future().then(lambda _: time.sleep(0.02)) for work in works]
    for future in futures:
        future.wait()
    deadline = time.monotonic() + 20
    while threads() > before + 1:
        assert time.monotonic() < deadline, (before, threads())
        time.sleep(0.1)


@case(backends=("brigade",), quick=True, needs_native=True)
def no_work_for_what_is_done(rank, world):
    tensor, options = torch.ones(3), dist.AllreduceOptions()
    options.asyncOp = False
    assert dist.group.WORLD.allreduce([tensor], options) is None
    assert tensor[0].item() == world
    # Those who profile see it all the same.
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        dist.all_reduce(tensor)
        dist.all_reduce(tensor, async_op=True).wait()
    names = [event.name for event in profile.events()]
    assert tensor[0].item() == world**3
    assert names.count("brigade:all_reduce") == 2, names


@case(gloo_fails=True, quick=True)
def callbacks_that_wait_for_collectives(rank, world):
    def further(depth):
        def call(future):
            value = future.value()[0]
            if depth == 0:
                return value
            work = dist.all_reduce(value / world, async_op=True)
            return work.get_future().then(further(depth - 1)).wait()

        return call

    for _ in range(20):
        work = dist.all_reduce(torch.ones(3), async_op=True)
        out = work.get_future().then(further(6)).wait()
        torch.testing.assert_close(out, torch.full((3,), float(world)))


@case()
def callbacks_that_fail(rank, world):
    def fail(future):
        raise ValueError("of the callback")

    work = dist.all_reduce(torch.ones(3), async_op=True)
    broken = work.get_future().then(fail)
    assert "of the callback" in str(refused(broken.wait))
    dist.barrier()


@case()
def several_groups_at_a_time(rank, world):
    groups = [dist.new_group() for _ in range(3)]
    tensors = [torch.ones(100_000) for _ in groups]
    order = list(zip(groups, tensors))
    # Groups are independent: ranks may begin their calls in different orders.
    works = [
        dist.all_reduce(tensor, group=group, async_op=True)
        for group, tensor in (order if rank % 2 else order[::-1])
    ]
    for work in works:
        work.wait()
    for tensor in tensors:
        assert bool((tensor == world).all())


@case()
def waiting_with_a_limit(rank, world):
    group = dist.new_group()
    if rank == 0:
        work = dist.all_reduce(torch.ones(2), group=group, async_op=True)
        begin = time.monotonic()
        refused(work.wait, datetime.timedelta(milliseconds=200), kind=RuntimeError)
        assert time.monotonic() - begin < 20
        dist.barrier()
    else:
        dist.barrier()
        dist.all_reduce(torch.ones(2), group=group)


@case()
def again_and_again(rank, world):
    for turn in range(5):
        group = dist.new_group()
        tensor = torch.ones(1)
        dist.all_reduce(tensor, group=group)
        assert tensor.item() == world
        dist.barrier(group)
        dist.destroy_process_group(group)


@case(backends=("brigade",), needs_native=True)
def another_timeout(rank, world):
    group = dist.new_group()
    dist.set_timeout(datetime.timedelta(milliseconds=500), group)
    dist.all_reduce(torch.ones(1), group=group)
    dist.barrier()
    if rank == 0:
        begin = time.monotonic()
        error = refused(dist.all_reduce, torch.ones(1), group=group)
        assert "500 ms" in str(error), error
        assert time.monotonic() - begin < 20
    dist.barrier()


@case(backends=("brigade",), quick=True)
def a_timeout_longer_than_the_group_has(rank, world):
    most = datetime.timedelta(seconds=3600.7)
    group = dist.new_group(timeout=most)
    longer = most + datetime.timedelta(seconds=1)
    told = "a timeout of 3601700 ms, but calls of this group wait for 3600700 ms at most"
    error = refused(dist.set_timeout, longer, group, kind=ValueError)
    assert f"brigade, rank {rank}" in str(error) and told in str(error), error
    error = refused(dist.barrier, group, timeout=longer, kind=ValueError)
    assert f"brigade, rank {rank}" in str(error) and told in str(error), error
    dist.set_timeout(most, group)
    dist.barrier(group, timeout=most)
