"""Deaths, deadlines and mistakes: errors, neither crashes nor hangs."""

import datetime
import gc
import os
import re
import signal
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from .case import barrier_before_the_end_of, begin, case, end_with_the_others, refused


@case(bare=True, ends={1: -signal.SIGKILL}, quick=True)
def the_death_of_a_peer(backend, rank, world):
    begin(backend, 30)
    dist.all_reduce(torch.ones(1))
    barrier_before_the_end_of(1, rank, world)
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    since = time.monotonic()
    refused(dist.all_reduce, torch.ones(1 << 20), kind=RuntimeError)
    assert time.monotonic() - since < 25
    os._exit(0)


@case(bare=True, worlds=(2,), ends={1: -signal.SIGKILL})
def the_death_of_who_sends(backend, rank, world):
    begin(backend, 30)
    tensor = torch.ones(1)
    if rank == 1:
        dist.send(tensor, 0)
        # It has come when both are here, and not just been sent.
        dist.barrier()
        os.kill(os.getpid(), signal.SIGKILL)
    dist.recv(tensor, 1)
    dist.barrier()
    since = time.monotonic()
    refused(dist.recv, tensor, 1, kind=RuntimeError)
    assert time.monotonic() - since < 25
    os._exit(0)


@case(bare=True, worlds=(4,), backends=("brigade",), ends={3: -signal.SIGKILL}, quick=True)
def what_fails_in_a_message_names_the_peer(backend, rank, world):
    begin(backend, 30)
    tensor = torch.ones(1)
    if rank == 2:
        dist.recv(tensor, 3)
    elif rank == 3:
        dist.send(tensor, 2)
    barrier_before_the_end_of(3, rank, world)
    if rank == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    if rank == 2:
        error = str(refused(dist.recv, tensor, 3, kind=dist.DistBackendError))
        assert "from rank 3: rank 3 is lost" in error, error
    end_with_the_others(rank, [0, 1, 2])


@case(bare=True, backends=("brigade",), quick=True)
def a_message_that_nobody_sends_or_takes(backend, rank, world):
    begin(backend, 2)
    dist.barrier()
    if rank == 0:
        error = str(refused(dist.recv, torch.ones(1), 1, kind=dist.DistBackendError))
        assert "from rank 1: rank 1 sent nothing within 2000 ms" in error, error
        error = str(refused(dist.send, torch.ones(1), 1, kind=dist.DistBackendError))
        assert "to rank 1: rank 1 took nothing within 2000 ms" in error, error
    # The others stay until then, and the one that serves the store longer.
    end_with_the_others(rank, range(world))


@case(bare=True, backends=("brigade",), ends={1: -signal.SIGKILL}, quick=True)
def a_new_group_with_a_rank_that_died(backend, rank, world):
    begin(backend, 60)
    barrier_before_the_end_of(1, rank, world)
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    since = time.monotonic()
    error = str(refused(dist.new_group, kind=dist.DistBackendError))
    assert "rank 1 will not come to this group: it is lost" in error, error
    assert time.monotonic() - since < 20
    end_with_the_others(rank, [other for other in range(world) if other != 1])


@case(bare=True, worlds=(4,), backends=("brigade",), quick=True)
def a_new_group_with_a_rank_that_left(backend, rank, world):
    begin(backend, 60)
    dist.barrier()
    if rank == 2:
        time.sleep(0.5)
        sys.exit(0)
    if rank == 0:
        end_with_the_others(rank, [0, 1, 3])
    since = time.monotonic()
    error = str(refused(dist.new_group, [1, 2, 3], kind=dist.DistBackendError))
    known = "rank 1 (2 of its elder group) will not come to this group: it has left"
    assert known in error, error
    assert time.monotonic() - since < 20
    end_with_the_others(rank, [0, 1, 3])


@case(bare=True, worlds=(4,), backends=("brigade",), ends={2: -signal.SIGKILL}, quick=True)
def a_new_group_of_those_who_are_left(backend, rank, world):
    begin(backend, 60)
    barrier_before_the_end_of(2, rank, world)
    if rank == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(0.5)
    group = dist.new_group([0, 1, 3], use_local_synchronization=True)
    tensor = torch.ones(1)
    dist.all_reduce(tensor, group=group)
    assert tensor.item() == 3
    end_with_the_others(rank, [0, 1, 3])


@case(
    bare=True, worlds=(2,), backends=("brigade",), quick=True,
    environment={"BRIGADE_REPORT_MS": "1800"},
)
def a_new_group_that_is_late_or_never_comes(backend, rank, world):
    begin(backend, 60)
    limit = datetime.timedelta(seconds=3)
    if rank == 1:
        time.sleep(1.5)
    dist.new_group(timeout=limit)
    if rank == 1:
        time.sleep(6)
        os._exit(0)
    said = Path("rank0.log").read_text()
    told = re.search(r"rank 0 has waited (\S+) s for rank 1 to come to a group of 2; it", said)
    assert told and 0.3 <= float(told[1]) < 1.5, said
    error = str(refused(dist.new_group, timeout=limit, kind=dist.DistBackendError))
    told = re.search(r"waited (\S+) s for rank 1 to come to this group", error)
    assert told and 3 <= float(told[1]) < 6, error
    os._exit(0)


@case(bare=True, quick=True)
def a_timeout(backend, rank, world):
    begin(backend, 2)
    dist.all_reduce(torch.ones(1))
    if rank == 0:
        since = time.monotonic()
        refused(dist.all_reduce, torch.ones(1), kind=RuntimeError)
        assert 1 < time.monotonic() - since < 20
    else:
        time.sleep(5)
    os._exit(0)


@case(bare=True, backends=("brigade",))
def different_calls(backend, rank, world):
    since = time.monotonic()

    def join_and_call():
        # Who is late hears of it where it joins.
        begin(backend, 60)
        dist.all_reduce(torch.ones(3 + rank % 2))

    error = refused(join_and_call, kind=dist.DistBackendError)
    assert time.monotonic() - since < 20, error
    os._exit(0)


@case(bare=True, quick=True)
def a_failed_collective_within_ddp(backend, rank, world):
    begin(backend, 3)
    model = DistributedDataParallel(torch.nn.Linear(50, 50))
    for _ in range(3):
        model(torch.ones(1, 50)).sum().backward()
    if rank == 0:
        loss = model(torch.ones(1, 50)).sum()
        refused(loss.backward, kind=RuntimeError)
    else:
        time.sleep(6)
    os._exit(0)


@case(bare=True, quick=True, needs_native=True)
def errors_reach_futures(backend, rank, world):
    begin(backend, 2)
    if rank == 0:
        work = dist.all_reduce(torch.ones(1), async_op=True)
        future = work.get_future()
        seen = []
        after = future.then(lambda done: seen.append(done.wait()))
        refused(work.wait, kind=RuntimeError)
        refused(future.wait, kind=RuntimeError)
        refused(after.wait)
        assert work.is_completed() and not work.is_success() and not seen
    else:
        time.sleep(5)
    os._exit(0)


@case(bare=True, backends=("brigade",))
def an_abort(backend, rank, world):
    begin(backend, 60)
    work = dist.all_reduce(torch.ones(1), async_op=True) if rank == 0 else None
    receive = dist.irecv(torch.ones(1), 1) if rank == 0 else None
    time.sleep(0.5 if rank == 0 else 2)
    if rank == 0:
        dist.group.WORLD._get_backend(torch.device("cpu")).abort()
        refused(work.wait, kind=RuntimeError)
        refused(receive.wait, kind=RuntimeError)
    else:
        refused(dist.all_reduce, torch.ones(1), kind=RuntimeError)
    dist.destroy_process_group()


@case(bare=True)
def wrong_arguments_break_nothing(backend, rank, world):
    begin(backend)
    refused(dist.all_gather_into_tensor, torch.empty(3), torch.empty(2))
    refused(dist.all_gather, [torch.empty(2)] * (world + 1), torch.empty(2))
    refused(dist.reduce_scatter_tensor, torch.empty(2), torch.empty(2 * world + 1))
    refused(dist.broadcast, torch.ones(1), world)
    tensor = torch.ones(1)
    dist.all_reduce(tensor)
    assert tensor.item() == world
    dist.destroy_process_group()


@case(backends=("brigade",), quick=True)
def wrong_arguments_are_told_with_rank_and_call(rank, world):
    def told(kind, call, function, *arguments):
        error = str(refused(function, *arguments, kind=kind))
        assert f"brigade, rank {rank}, {call}: " in error, error

    group, one = dist.group.WORLD, torch.ones(1)
    told(ValueError, "all_gather", dist.all_gather_into_tensor, torch.empty(3), torch.empty(2))
    told(ValueError, "reduce_scatter", dist.reduce_scatter_tensor, one, torch.empty(7 * world + 1))
    sparse = torch.ones(2).to_sparse()
    told(TypeError, "all_reduce", dist.all_reduce, sparse, dist.ReduceOp.MAX)
    told(ValueError, "broadcast", group.broadcast, one, world)
    told(ValueError, "all_to_all", dist.all_to_all_single, torch.empty(2 * world + 1), one)
    told(ValueError, "send", group.send, [one], rank, 0)
    told(ValueError, "recv", group.recv, [one], -1, 0)
    told(ValueError, "barrier", lambda: dist.barrier(timeout=datetime.timedelta(days=1)))


@case(worlds=(4,), backends=("brigade",), quick=True)
def what_goes_wrong_in_a_group_says_in_which(rank, world):
    members = [1, 3]
    group = dist.new_group(members)
    if rank in members:
        own = members.index(rank)
        who = f"brigade, rank {own} of the group [1, 3]"
        lengths = torch.empty(3), torch.empty(2)
        error = refused(dist.all_gather_into_tensor, *lengths, group, kind=ValueError)
        assert f"{who}, all_gather: " in str(error), error
        unequal = torch.ones(1 + own)
        error = refused(dist.all_reduce, unequal, group=group, kind=dist.DistBackendError)
        assert str(error).startswith(f"{who}: "), error
    dist.barrier()


@case(bare=True, backends=("brigade",), quick=True)
def what_two_ranks_say_of_themselves(backend, rank, world):
    begin(backend, 30)
    tensor = torch.ones(1)
    if rank == world - 1:
        dist.send(tensor, world - 2)
        barrier_before_the_end_of(world - 1, rank, world)
        dist.group.WORLD._get_backend(torch.device("cpu")).abort()
        time.sleep(3)
    elif rank == world - 2:
        dist.recv(tensor, world - 1)
        barrier_before_the_end_of(world - 1, rank, world)
        error = str(refused(dist.recv, tensor, world - 1, kind=dist.DistBackendError))
        begins = f"brigade, rank {rank}: a message from rank {world - 1}: rank 0 aborted"
        assert error.startswith(begins), error
        ends = f"its rank 0 is rank {world - 1}, who sends, its rank 1 is rank {rank}, who receives"
        assert ends in error, error
    else:
        barrier_before_the_end_of(world - 1, rank, world)
        time.sleep(3)
    os._exit(0)


@case(bare=True, quick=True)
def an_end_without_a_goodbye(backend, rank, world):
    begin(backend)
    dist.all_reduce(torch.ones(1))
    work = dist.all_reduce(torch.ones(1000), async_op=True)
    work.get_future().then(lambda future: time.sleep(0.2))
    work.wait()


@case(bare=True, backends=("brigade",), quick=True)
def an_end_while_a_call_goes_on(backend, rank, world):
    begin(backend)
    if rank == 0:
        works = [dist.all_reduce(torch.ones(10), async_op=True) for _ in range(3)]
        works[0].get_future().then(lambda future: future.value())
    sys.exit(0)


@case(bare=True)
def a_group_that_is_collected(backend, rank, world):
    begin(backend)
    group = dist.new_group()
    dist.all_reduce(torch.ones(1), group=group)
    dist.barrier()
    dist.destroy_process_group(group)
    del group
    gc.collect()
    tensor = torch.ones(1)
    dist.all_reduce(tensor)
    assert tensor.item() == world
    dist.destroy_process_group()


@case(bare=True)
def a_second_world(backend, rank, world):
    store = dist.TCPStore("127.0.0.1", int(os.environ["MASTER_PORT"]), world, rank == 0)
    for turn in range(3):
        limit = datetime.timedelta(seconds=30)
        dist.init_process_group(
            backend, store=dist.PrefixStore(f"{turn if backend == 'gloo' else ''}", store),
            rank=rank, world_size=world, timeout=limit,
        )
        tensor = torch.ones(1)
        dist.all_reduce(tensor)
        assert tensor.item() == world
        dist.barrier()
        dist.destroy_process_group()


@case(bare=True, backends=("brigade",))
def a_child_of_fork(backend, rank, world):
    begin(backend)
    dist.all_reduce(torch.ones(1), async_op=True).wait()
    pid = os.fork()
    if pid == 0:
        error = refused(dist.all_reduce, torch.ones(1), kind=RuntimeError)
        os._exit(0 if "fork" in str(error) else 3)
    assert os.waitpid(pid, 0)[1] == 0
    tensor = torch.ones(1)
    dist.all_reduce(tensor)
    assert tensor.item() == world
    dist.destroy_process_group()


@case(environment={"TORCH_DISTRIBUTED_DEBUG": "DETAIL"}, gloo_fails=True, quick=True)
def in_detail(rank, world):
    tensor = torch.ones(2)
    dist.all_reduce(tensor)
    assert tensor[0].item() == world
    model = DistributedDataParallel(torch.nn.Linear(5, 5))
    model(torch.ones(1, 5)).sum().backward()
    out = torch.empty(2 * world)
    dist.all_gather_into_tensor(out, tensor)
    other, got = torch.ones(2), torch.empty(2)
    works = dist.batch_isend_irecv([
        dist.P2POp(dist.isend, other, (rank + 1) % world),
        dist.P2POp(dist.irecv, got, (rank - 1) % world),
    ])
    for work in works:
        work.wait()
    everyone = [None] * world
    dist.all_gather_object(everyone, rank)
    assert everyone == list(range(world))
