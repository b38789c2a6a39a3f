"""Collectives over lists and parts, functional ones, coalesced ones, objects."""

import time

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch.multiprocessing.reductions import StorageWeakRef

from .case import case, refused


def mine(rank, count=6):
    return torch.arange(count, dtype=torch.float32) + 10 * rank


@case(quick=True)
def gathered_lists(rank, world):
    everyone = [torch.empty(6) for _ in range(world)]
    dist.all_gather(everyone, mine(rank))
    wanted = [mine(r) for r in range(world)]
    torch.testing.assert_close(everyone, wanted)
    together = torch.empty(world, 6)
    dist.all_gather(list(together), mine(rank))
    torch.testing.assert_close(list(together), wanted)
    flat = torch.empty(6 * world)
    dist.all_gather_into_tensor(flat, mine(rank))
    torch.testing.assert_close(flat, torch.cat(wanted))
    # In place, and from a place that is only nearly the right one.
    flat = torch.zeros(6 * world)
    flat[6 * rank : 6 * rank + 6] = mine(rank)
    dist.all_gather_into_tensor(flat, flat[6 * rank : 6 * rank + 6])
    torch.testing.assert_close(flat, torch.cat(wanted))


@case(backends=("brigade",))
def overlap_is_no_corruption(rank, world):
    flat = torch.zeros(6 * world + 1)
    flat[1 + 6 * rank : 7 + 6 * rank] = mine(rank)
    dist.all_gather_into_tensor(flat[:-1], flat[1 + 6 * rank : 7 + 6 * rank])
    torch.testing.assert_close(flat[:-1], torch.cat([mine(r) for r in range(world)]))
    flat[1 + 6 * rank : 7 + 6 * rank] = mine(rank)
    lists = [[flat[6 * r : 6 * r + 6]] for r in range(world)]
    dist.all_gather_coalesced(lists, [flat[1 + 6 * rank : 7 + 6 * rank]])
    torch.testing.assert_close(flat[:-1], torch.cat([mine(r) for r in range(world)]))


@case(backends=("brigade",))
def lists_of_unequal_parts(rank, world):
    everyone = [torch.empty(r + 1) for r in range(world)]
    dist.all_gather(everyone, mine(rank, rank + 1))
    torch.testing.assert_close(everyone, [mine(r, r + 1) for r in range(world)])
    out = torch.empty(rank + 1)
    dist.reduce_scatter(out, [mine(rank, r + 1) for r in range(world)])
    torch.testing.assert_close(out, sum(mine(r, rank + 1) for r in range(world)))
    gathered = [torch.empty(r) for r in range(world)] if rank == 0 else None
    dist.gather(mine(rank, rank), gathered, 0)
    if rank == 0:
        torch.testing.assert_close(gathered, [mine(r, r) for r in range(world)])


def with_every_call(rank, world):
    """Each collective once, with parts that are alike and with others."""
    for function in [gathered_lists, lists_of_unequal_parts, reduced_parts, all_to_all_of_one_tensor]:
        function(rank, world)
    everybody = [None] * world
    dist.all_gather_object(everybody, {"rank": rank})
    assert everybody == [{"rank": r} for r in range(world)]
    told = torch.full((3,), float(rank))
    dist.all_reduce(told)
    dist.broadcast(told, world - 1)
    torch.testing.assert_close(told, torch.full((3,), sum(range(world)) * 1.0))
    if rank == 0:
        dist.send(told, 1)
    elif rank == 1:
        dist.recv(told, 0)


@case(backends=("brigade",), quick=True, in_python=(0,))
def first_backend_in_python_and_others_in_native(rank, world):
    with_every_call(rank, world)


@case(backends=("brigade",), in_python=(1,))
def second_backend_in_python_and_others_in_native(rank, world):
    with_every_call(rank, world)


@case(quick=True)
def reduced_parts(rank, world):
    wanted = sum(mine(r, 3 * world) for r in range(world))[3 * rank : 3 * rank + 3]
    out = torch.empty(3)
    dist.reduce_scatter_tensor(out, mine(rank, 3 * world))
    torch.testing.assert_close(out, wanted)
    dist.reduce_scatter(out, list(mine(rank, 3 * world).chunk(world)))
    torch.testing.assert_close(out, wanted)
    whole = mine(rank, 3 * world)
    dist.reduce_scatter_tensor(whole[3 * rank : 3 * rank + 3], whole)
    torch.testing.assert_close(whole[3 * rank : 3 * rank + 3], wanted)


@case(quick=True)
def all_to_all_of_one_tensor(rank, world):
    out = torch.empty(2 * world)
    dist.all_to_all_single(out, mine(rank, 2 * world))
    wanted = torch.cat([mine(r, 2 * world)[2 * rank : 2 * rank + 2] for r in range(world)])
    torch.testing.assert_close(out, wanted)
    # Rank r sends (r + to) % 3 rows of two to rank `to`.
    rows = [[(r + to) % 3 for to in range(world)] for r in range(world)]
    sent = torch.full((sum(rows[rank]), 2), float(rank))
    received = [rows[r][rank] for r in range(world)]
    out = torch.empty(sum(received), 2)
    dist.all_to_all_single(out, sent, received, rows[rank])
    wanted = torch.cat([torch.full((count, 2), float(r)) for r, count in enumerate(received)])
    torch.testing.assert_close(out, wanted)


@case(gloo_fails=True)
def all_to_all_of_unequal_lists(rank, world):
    sent = [torch.full((rank + to,), float(10 * rank + to)) for to in range(world)]
    out = [torch.empty(rank + r) for r in range(world)]
    dist.all_to_all(out, sent)
    wanted = [torch.full((rank + r,), float(10 * r + rank)) for r in range(world)]
    torch.testing.assert_close(out, wanted)


@case(gloo_fails=True)
def coalesced(rank, world):
    for is_async in [False, True]:
        tensors = [mine(rank, count) for count in [1, 5, 1000]]
        with dist._coalescing_manager(device=torch.device("cpu"), async_ops=is_async) as manager:
            for tensor in tensors:
                dist.all_reduce(tensor)
        if is_async:
            manager.wait()
        for tensor in tensors:
            wanted = sum(mine(r, len(tensor)) for r in range(world))
            torch.testing.assert_close(tensor, wanted)
    outs = [torch.empty(count * world) for count in [2, 3]]
    with dist._coalescing_manager(async_ops=True) as manager:
        for out in outs:
            dist.all_gather_into_tensor(out, mine(rank, len(out) // world))
    manager.wait()
    for out in outs:
        wanted = torch.cat([mine(r, len(out) // world) for r in range(world)])
        torch.testing.assert_close(out, wanted)
    outs = [torch.empty(2), torch.empty(3)]
    with dist._coalescing_manager():
        for out in outs:
            dist.reduce_scatter_tensor(out, mine(rank, len(out) * world))
    for out in outs:
        wanted = sum(mine(r, len(out) * world) for r in range(world)).chunk(world)[rank]
        torch.testing.assert_close(out, wanted)


@case(backends=("brigade",), quick=True)
def a_batch_in_which_a_call_is_refused_holds_no_tensors(rank, world):
    group, device, noted = dist.new_group(), torch.device("cpu"), []

    def broadcast():
        tensor = torch.full((1000,), float(rank))
        dist.broadcast(tensor, 0, group)
        noted.append(StorageWeakRef(tensor.untyped_storage()))

    def batch():
        with dist._coalescing_manager(group, device):
            broadcast()
            dist.all_to_all_single(torch.ones(4), torch.ones(4), [3], [4], group)

    refused(batch, kind=ValueError)
    # torch says nothing of it to the group.
    for _ in range(3):
        broadcast()
    dist.barrier(group)
    deadline = time.monotonic() + 20
    while not all(tensor.expired() for tensor in noted):
        assert time.monotonic() < deadline, [tensor.expired() for tensor in noted]
        time.sleep(0.01)
    tensor = torch.full((1000,), float(rank))
    with dist._coalescing_manager(group, device, async_ops=True) as manager:
        dist.broadcast(tensor, 1, group)
    manager.wait()
    assert bool((tensor == 1).all())


@case()
def functional_ones(rank, world):
    group = list(range(world))
    total = functional.all_reduce(mine(rank), "sum", group)
    torch.testing.assert_close(total + 0, sum(mine(r) for r in range(world)))
    everyone = functional.all_gather_tensor(mine(rank), 0, group)
    torch.testing.assert_close(everyone + 0, torch.cat([mine(r) for r in range(world)]))
    part = functional.reduce_scatter_tensor(mine(rank, 2 * world), "sum", 0, group)
    wanted = sum(mine(r, 2 * world) for r in range(world)).chunk(world)[rank]
    torch.testing.assert_close(part + 0, wanted)
    both = functional.all_reduce_coalesced([mine(rank), mine(rank, 3)], "sum", group)
    torch.testing.assert_close(both[1] + 0, sum(mine(r, 3) for r in range(world)))
    turned = functional.all_to_all_single(mine(rank, world), [1] * world, [1] * world, group)
    torch.testing.assert_close(turned + 0, torch.stack([mine(r, world)[rank] for r in group]))


@case(quick=True)
def objects(rank, world):
    everyone = [None] * world
    dist.all_gather_object(everyone, {"rank": rank, "text": "x" * (rank * 1000)})
    assert [one["rank"] for one in everyone] == list(range(world))
    told = [["a", 3], None] if rank == 0 else [None, None]
    dist.broadcast_object_list(told, 0)
    assert told == [["a", 3], None]
    gathered = [None] * world if rank == 1 else None
    dist.gather_object((rank, "b"), gathered, 1)
    assert rank != 1 or gathered == [(r, "b") for r in range(world)]
    got = [None]
    dist.scatter_object_list(got, [f"for {r}" for r in range(world)] if rank == 0 else None, 0)
    assert got == [f"for {rank}"]
    if rank == 0:
        dist.send_object_list([{"to": 1}], 1)
    if rank == 1:
        dist.recv_object_list(got, 0)
        assert got == [{"to": 1}]


@case(quick=True)
def groups(rank, world):
    for members in [[0], [0, 1], list(range(world))[::-1], [world - 1, 0]]:
        group = dist.new_group(members)
        if rank not in members:
            continue
        tensor = torch.tensor([float(rank + 1)])
        dist.all_reduce(tensor, group=group)
        assert tensor.item() == sum(member + 1 for member in members)
        dist.barrier(group)
        dist.destroy_process_group(group)
    halves, _ = dist.new_subgroups(world // 2)
    tensor = torch.ones(1)
    dist.all_reduce(tensor, group=halves)
    assert tensor.item() == world // 2


@case(needs_native=True)
def split_groups(rank, world):
    turned = list(range(world))[::-1]
    part = dist.split_group(split_ranks=[turned[: world // 2], turned[world // 2 :]])
    everyone = [None] * (world // 2)
    dist.all_gather_object(everyone, rank, group=part)
    assert everyone == (turned[: world // 2] if rank >= world // 2 else turned[world // 2 :])
