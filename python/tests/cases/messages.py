"""From one rank to another."""

import datetime
import os
import threading
import time

import torch
import torch.distributed as dist

from .case import case, end_with_the_others, refused


def ring(rank, world):
    return (rank + 1) % world, (rank - 1) % world


@case(quick=True)
def blocking(rank, world):
    for count in [0, 1, 1000, 3_000_000]:
        tensor = torch.full((count,), float(rank))
        if rank == 0:
            dist.send(tensor, 1)
            dist.recv(tensor, world - 1)
            assert count == 0 or tensor[-1].item() == world - 1
        else:
            dist.recv(tensor, rank - 1)
            assert count == 0 or tensor[-1].item() == rank - 1
            dist.send(tensor.fill_(rank), (rank + 1) % world)


@case(quick=True)
def batches(rank, world):
    after, before = ring(rank, world)
    for count in [1, 2_000_000]:
        for dtype in [torch.float32, torch.int64]:
            sent = torch.full((count,), rank).to(dtype)
            got = torch.empty(count, dtype=dtype)
            operations = [
                dist.P2POp(dist.irecv, got, before), dist.P2POp(dist.isend, sent, after)
            ]
            for work in dist.batch_isend_irecv(operations):
                work.wait()
            assert bool((got == before).all())


@case(quick=True)
def batches_beside_another_thread(rank, world):
    after, before = ring(rank, world)
    wrong = []

    def add_up():
        for _ in range(200):
            ones = torch.ones(10)
            dist.all_reduce(ones)
            if ones[0] != world:
                wrong.append(ones[0].item())

    thread = threading.Thread(target=add_up)
    thread.start()
    for _ in range(40):
        got = [torch.empty(4) for _ in range(20)]
        operations = [dist.P2POp(dist.isend, torch.full((4,), float(rank)), after) for _ in got]
        operations += [dist.P2POp(dist.irecv, tensor, before) for tensor in got]
        for work in dist.batch_isend_irecv(operations):
            work.wait()
        assert all(bool((tensor == before).all()) for tensor in got)
    thread.join()
    assert not wrong, (len(wrong), wrong[0])


@case(gloo_fails=True, quick=True, needs_native=True)
def from_anybody(rank, world):
    count = 5
    if rank > 0:
        for number in range(count):
            dist.send(torch.tensor([rank, number]), 0, tag=number % 2)
        dist.send(torch.full((100_000,), float(rank)), 0, tag=7)
        return
    seen = [0] * world
    for number in range(count * (world - 1)):
        got = torch.empty(2, dtype=torch.int64)
        # The even ones first.
        tag = 0 if number < 3 * (world - 1) else 1
        source = dist.recv(got, tag=tag)
        assert got[0] == source and got[1] % 2 == tag, (got, source)
        seen[source] += 1
    assert seen[1:] == [count] * (world - 1), seen
    # Those that looked in vain have lost nothing.
    for peer in range(1, world):
        big = torch.empty(100_000)
        dist.recv(big, peer, tag=7)
        assert bool((big == peer).all())


@case()
def everybody_to_everybody(rank, world):
    sent = [torch.full((50_000,), 10.0 * rank + to) for to in range(world)]
    got = [torch.empty(50_000) for _ in range(world)]
    peers = [peer for peer in range(world) if peer != rank]
    # Receives first on even ranks, sends first on odd ones.
    receive = [lambda peer=peer: dist.irecv(got[peer], peer) for peer in peers]
    send = [lambda peer=peer: dist.isend(sent[peer], peer) for peer in peers]
    works = [start() for start in (receive + send if rank % 2 == 0 else send + receive)]
    for work in works:
        work.wait()
    for peer in peers:
        assert bool((got[peer] == 10.0 * peer + rank).all())


@case(gloo_fails=True, quick=True)
def tags_in_another_order(rank, world):
    if rank == 0:
        works = [dist.isend(torch.full((tag + 3,), float(tag)), 1, tag=tag) for tag in range(5)]
        for work in works:
            work.wait()
    elif rank == 1:
        got = {tag: torch.empty(tag + 3) for tag in range(5)}
        works = {tag: dist.irecv(got[tag], 0, tag=tag) for tag in [3, 0]}
        works[3].wait()
        for tag in [4, 1, 2]:
            works[tag] = dist.irecv(got[tag], 0, tag=tag)
        for tag, work in works.items():
            work.wait()
            assert bool((got[tag] == tag).all())


@case(quick=True)
def those_with_one_tag_keep_their_order(rank, world):
    sent = [torch.tensor([float(number)]) for number in (1, 2, 5)]
    dist.barrier()
    if rank == 0:
        works = [dist.isend(sent[0], 1, tag=2)]
        dist.barrier()
        time.sleep(0.6)
        works += [dist.isend(sent[1], 1, tag=2), dist.isend(sent[2], 1, tag=5)]
        for work in works:
            work.wait()
        return
    got = [torch.empty(1) for _ in sent]
    if rank == 1:
        last = dist.irecv(got[2], 0, tag=5)
    dist.barrier()
    if rank == 1:
        # The first one has come, and nobody wanted it.
        time.sleep(0.2)
        works = [dist.irecv(got[0], 0, tag=2), dist.irecv(got[1], 0, tag=2), last]
        for work in works:
            work.wait()
        assert [one.item() for one in got] == [1, 2, 5], got


@case(quick=True)
def one_that_has_come_waits_for_no_other(rank, world):
    here = torch.zeros(1)
    if rank == 0:
        work = dist.isend(here + 2, 1, tag=2)
        dist.recv(here, 1, tag=7)
        dist.send(here + 3, 1, tag=5)
        work.wait()
    elif rank == 1:
        there = torch.empty(1)
        work = dist.irecv(there, 0, tag=5)
        time.sleep(0.3)
        dist.recv(here, 0, tag=2)
        dist.send(here, 0, tag=7)
        work.wait()
        assert (here.item(), there.item()) == (2, 5)


@case(backends=("brigade",), quick=True, needs_native=True)
def a_batch_in_which_a_call_is_refused_spoils_no_other(rank, world):
    after, before = ring(rank, world)
    sent, got = torch.full((3,), float(rank)), torch.empty(3)
    wrong = [dist.P2POp(dist.irecv, torch.ones(1).expand(3), before)]
    refused(dist.batch_isend_irecv, wrong, kind=RuntimeError)
    right = [dist.P2POp(dist.irecv, got, before), dist.P2POp(dist.isend, sent, after)]
    for work in dist.batch_isend_irecv(right):
        work.wait()
    assert bool((got == before).all())


@case()
def a_message_does_not_wait_for_collectives(rank, world):
    tensor = torch.zeros(1)
    if rank == 0:
        work = dist.all_reduce(torch.ones(1), async_op=True)
        dist.recv(tensor, 1)
        work.wait()
    else:
        if rank == 1:
            dist.send(tensor + 1, 0)
        dist.all_reduce(torch.ones(1))


@case(backends=("brigade",))
def views_with_steps(rank, world):
    base = torch.zeros(6, 4)
    if rank == 0:
        dist.send(torch.arange(24.0).reshape(4, 6).t()[:, 1:3], 1)
    elif rank == 1:
        dist.recv(base[:, ::2], 0)
        wanted = torch.arange(24.0).reshape(4, 6).t()[:, 1:3]
        torch.testing.assert_close(base[:, ::2], wanted)
        assert bool((base[:, 1::2] == 0).all())


@case(backends=("brigade",))
def wrong_sizes_are_told(rank, world):
    if rank == 0:
        dist.send(torch.ones(10), 1)
        dist.send(torch.ones(5), 1)
    elif rank == 1:
        error = refused(dist.recv, torch.empty(4), 0, kind=RuntimeError)
        assert "40 bytes" in str(error) and "16" in str(error), error
        tensor = torch.empty(5)
        dist.recv(tensor, 0)
        assert bool((tensor == 1).all())


@case(backends=("brigade",), quick=True)
def other_types_are_told(rank, world):
    if rank == 0:
        for tag in 2, 1:
            dist.send(torch.ones(6), 1, tag=tag)
        dist.send(torch.ones(6, dtype=torch.uint32), 1, tag=3)
        dist.send(torch.ones(3), 1)
    elif rank == 1:
        for tag, dtype in [(1, torch.int32), (2, torch.int32), (3, torch.float32)]:
            got = torch.zeros(6, dtype=dtype)
            # That of the second has been kept meanwhile.
            error = refused(dist.recv, got, 0, None, tag)
            assert "came for a tensor of " in str(error), error
            assert bool((got == 0).all())
        tensor = torch.empty(3)
        dist.recv(tensor, 0)
        assert bool((tensor == 1).all())


@case()
def in_a_part_of_the_world(rank, world):
    group = dist.new_group([0, world - 1])
    if rank == 0:
        dist.send(torch.tensor([4.0]), world - 1, group=group)
    elif rank == world - 1:
        tensor = torch.empty(1)
        dist.recv(tensor, 0, group=group)
        assert tensor.item() == 4


@case(quick=True, needs_native=True)
def from_anybody_with_several_tags(rank, world):
    got = {tag: torch.empty(1) for tag in range(4)}
    if rank > 0:
        if rank == 1:
            for tag in 3, 1, 0:
                dist.send(torch.full((1,), float(tag)), 0, tag=tag)
        dist.barrier()
        dist.send(torch.full((1,), 2.0), 0, tag=2)
        return
    # From one rank beside what may come from any.
    works = {tag: dist.irecv(got[tag], tag=tag) for tag in [2, 0, 1]}
    works[3] = dist.irecv(got[3], 1, tag=3)
    for tag in 1, 3, 0:
        works[tag].wait()
        assert got[tag].item() == tag
    dist.barrier()
    works[2].wait()
    for _ in range(2, world):
        dist.recv(got[2], tag=2)
    assert got[2].item() == 2


@case(worlds=(4,), quick=True, needs_native=True)
def from_anybody_while_some_are_silent(rank, world):
    group = dist.new_group(timeout=datetime.timedelta(seconds=2))
    got = torch.empty(1)
    if rank == 0:
        # One of those that are silent has sent something before.
        dist.recv(got, 2, group=group)
        for _ in range(10):
            assert dist.recv(got, group=group) == 1
        # By now they have been silent for longer than the group waits.
        dist.send(got, 2)
        assert dist.recv(got, group=group) == 2
        dist.send(got, 3)
        dist.recv(got, 3, group=group)
    else:
        if rank == 2:
            dist.send(got, 0, group=group)
        for _ in range(10 if rank == 1 else 0):
            time.sleep(0.3)
            dist.send(got, 0, group=group)
        if rank > 1:
            dist.recv(got, 0)
            dist.send(got, 0, group=group)


class Counting(dist.Store):
    """A store that counts the connections that are made to it."""

    def __init__(self, store):
        super().__init__()
        self.store, self.made = store, 0

    def clone(self):
        self.made += 1
        return self.store.clone()

    def set(self, key, value):
        self.store.set(key, value)

    def get(self, key):
        return self.store.get(key)

    def add(self, key, number):
        return self.store.add(key, number)

    def check(self, keys):
        return self.store.check(keys)

    def wait(self, keys, *timeout):
        self.store.wait(keys, *timeout)


@case(bare=True, backends=("brigade",), quick=True)
def one_connection_to_the_store_for_all_messages(backend, rank, world):
    port, seconds = int(os.environ["MASTER_PORT"]), datetime.timedelta(seconds=30)
    store = Counting(dist.TCPStore("127.0.0.1", port, world, rank == 0, seconds))
    dist.init_process_group(backend, store=store, rank=rank, world_size=world, timeout=seconds)
    peers = [peer for peer in range(world) if peer != rank]
    works = [dist.isend(torch.ones(1), peer) for peer in peers]
    works += [dist.irecv(torch.ones(1), peer) for peer in peers]
    for work in works:
        work.wait()
    assert store.made == 1, store.made
    dist.barrier()
    end_with_the_others(rank, range(world))
