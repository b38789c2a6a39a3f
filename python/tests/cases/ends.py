"""How processes end, and what the others hear of it."""

import datetime
import gc
import importlib
import multiprocessing
import os
import re
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch
import torch.distributed as dist

from .case import barrier_before_the_end_of, begin, case, refused

# How much longer an interpreter takes to go. [seconds]
SLOWNESS = 4


class Slow:
    """Takes long to go."""

    def __del__(self, sleep=time.sleep):
        sleep(SLOWNESS)


class Hurried:
    """Goes when the interpreter does, and makes of a late end a bad one."""

    def __init__(self):
        self.deadline = time.monotonic() + 8

    def __del__(self, now=time.monotonic, end=os._exit):
        if now() > self.deadline:
            end(3)


def ends_by_an_exception():
    """What a program's end is taken for, as the interpreter has it when an exception ends it."""
    sys.last_value = ValueError("no such file")


@case(bare=True, backends=("brigade",), quick=True)
def who_ends_by_an_exception_says_so_and_waits_for_nothing(backend, rank, world):
    begin(backend, 60)
    barrier_before_the_end_of(1, rank, world)
    if rank == 1:
        dist.irecv(torch.ones(1), 0).get_future().then(lambda future: future.value())
        globals()["hurried"] = Hurried()
        return ends_by_an_exception()
    error = refused(dist.barrier, kind=dist.DistBackendError)
    assert "rank 1 aborted: its program ended with ValueError: no such file" in str(error), error


def has_ended(pid):
    """Whether a process has, though its parent may not know yet."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")")[1].split()[0] == "Z"
    except OSError:
        return True


def heard_when_it_has_ended(rank, world, end):
    """Rank 1 ends, and its interpreter takes long; what the others hear, who hear it then."""
    store = dist.distributed_c10d._get_default_store()
    if rank == 1:
        store.set("pid", str(os.getpid()))
    barrier_before_the_end_of(1, rank, world)
    if rank == 1:
        globals()["slow"] = Slow()
        return end()
    pid = int(store.get("pid"))
    error = refused(dist.barrier, kind=dist.DistBackendError)
    deadline = time.monotonic() + SLOWNESS / 2
    while not has_ended(pid):
        assert time.monotonic() < deadline, f"heard too early: {error}"
        time.sleep(0.01)
    return str(error)


@case(bare=True, backends=("brigade",), quick=True, needs_native=True)
def who_ends_by_an_exception_is_heard_of_when_it_has_ended(backend, rank, world):
    begin(backend, 60)
    error = heard_when_it_has_ended(rank, world, ends_by_an_exception)
    assert rank == 1 or "rank 1 aborted: its program ended with ValueError" in error, error


@case(bare=True, backends=("brigade",), quick=True, needs_native=True)
def who_leaves_is_heard_of_when_it_has_ended(backend, rank, world):
    begin(backend, 60)
    error = heard_when_it_has_ended(rank, world, lambda: None)
    assert rank == 1 or "rank 1 has left" in error, error


@case(bare=True, worlds=(2,), backends=("brigade",), quick=True)
def who_leaves_still_takes_part_in_what_it_has_begun(backend, rank, world):
    begin(backend, 40)
    dist.barrier()
    total = torch.ones(1)
    if rank == 1:
        dist.all_reduce(total, async_op=True)
        sys.exit(0)
    # By now it has come to its end.
    time.sleep(1)
    dist.all_reduce(total)
    assert total.item() == world
    os._exit(0)


PROGRAM = """
import torch, torch.distributed as dist
dist.init_process_group("brigade")
dist.all_reduce(torch.ones(1))
if dist.get_rank() == 2:
    raise ValueError("no such file")
dist.all_reduce(torch.ones(1))
"""


@case(bare=True, worlds=(2,), backends=("brigade",), needs_native=True)
def torchrun_names_who_ended_by_an_exception(backend, rank, world):
    if rank == 1:
        return
    Path("program.py").write_text(PROGRAM)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=4"]
    ended = subprocess.run([*command, "program.py"], capture_output=True, text=True, timeout=80)
    root = re.search(r"Root Cause.*?rank +: (\d+)", ended.stderr, re.DOTALL)
    assert root and root[1] == "2", ended.stderr


def be_a_child(backend, rank, world):
    """Ends with calls on their way, as nobody waits for them here."""
    begin(backend, 30)
    if rank == 0:
        dist.isend(torch.arange(1 << 20), 1)
    elif rank == 1:
        time.sleep(1)
        got = torch.empty(1 << 20, dtype=torch.int64)
        dist.recv(got, 0)
        assert torch.equal(got, torch.arange(1 << 20))
    total = torch.ones(1 << 20)
    work = dist.all_reduce(total, async_op=True)
    if rank == world - 1:
        work.wait()
        assert total.eq(world).all()


def be_a_child_that_raises(backend, rank, world):
    """The last rank raises something, and the others hear so."""
    begin(backend, 30)
    barrier_before_the_end_of(world - 1, rank, world)
    if rank == world - 1:
        dist.irecv(torch.ones(1), 0)
        raise ValueError("no such file")
    error = str(refused(dist.barrier, kind=dist.DistBackendError))
    words = f"rank {world - 1} aborted: its program ended with ValueError: no such file"
    assert words in error, error
    # The store may be here.
    time.sleep(1)


def exit_code_of(method, function, *arguments):
    """That of a child of multiprocessing with this function."""
    child = multiprocessing.get_context(method).Process(target=function, args=arguments)
    child.start()
    # What is spawned has torch to import.
    child.join(120)
    if child.exitcode is None:
        child.kill()
    return child.exitcode


@case(bare=True, quick=True, backends=("brigade",), seconds=150)
def children_that_are_forked_bring_what_they_sent(backend, rank, world):
    assert exit_code_of("fork", be_a_child, backend, rank, world) == 0


@case(bare=True, quick=True, backends=("brigade",), seconds=150)
def a_child_that_is_forked_and_raises_says_so(backend, rank, world):
    code = exit_code_of("fork", be_a_child_that_raises, backend, rank, world)
    assert code == (rank == world - 1), code


@case(bare=True, worlds=(2,), backends=("brigade",), seconds=150)
def a_child_that_is_spawned_and_raises_says_so(backend, rank, world):
    code = exit_code_of("spawn", be_a_child_that_raises, backend, rank, world)
    assert code == (rank == world - 1), code


FAMILY = """
import datetime, multiprocessing, os, sys, threading, time
import torch, torch.distributed as dist

def begin(rank):
    timeout = datetime.timedelta(seconds=200)
    met = "file://" + os.path.abspath("met")
    dist.init_process_group("brigade", init_method=met, rank=rank, world_size=2, timeout=timeout)
    dist.barrier()

def hear():
    try:
        dist.barrier()
    except dist.DistBackendError as error:
        print(error, flush=True)

def be_a_child(raises):
    begin(1)
    if not raises:
        return hear()
    if sys.argv[1] == "spawn":
        threading.Thread(target=lambda: dist.recv(torch.ones(1), 0)).start()
        time.sleep(1)
    raise ValueError("no such file")

def fork_a_child():
    multiprocessing.get_context("fork").Process(target=be_a_child, args=[True]).start()

if __name__ == "__main__":
    method = sys.argv[1]
    raises = method != "fork"
    if method == "both":
        multiprocessing.get_context("spawn").Process(target=fork_a_child).start()
    else:
        multiprocessing.get_context(method).Process(target=be_a_child, args=[raises]).start()
    begin(0)
    if not raises:
        raise ValueError("no such file")
    hear()
"""


def heard_in_a_family(method):
    """What a parent or a child hears of the other that raises, long before its call's timeout."""
    Path("family.py").write_text(FAMILY)
    command = [sys.executable, "family.py", method]
    # Each of them has torch to import.
    return subprocess.run(command, capture_output=True, text=True, timeout=120).stdout


@case(bare=True, worlds=(2,), backends=("brigade",), quick=True, seconds=150)
def children_hear_of_a_parent_that_waits_for_them(backend, rank, world):
    assert rank == 1 or "with ValueError: no such file" in heard_in_a_family("fork")


@case(bare=True, worlds=(2,), backends=("brigade",), seconds=150)
def who_raises_beside_a_thread_in_a_call_is_heard_of(backend, rank, world):
    assert rank == 1 or "with ValueError: no such file" in heard_in_a_family("spawn")


@case(bare=True, worlds=(2,), backends=("brigade",), seconds=150, quick=True)
def who_was_forked_by_a_child_that_was_spawned_is_heard_of(backend, rank, world):
    assert rank == 1 or "with ValueError: no such file" in heard_in_a_family("both")


@case(
    bare=True, is_program=False, worlds=(2,), backends=("brigade",), quick=True, needs_native=True
)
def groups_that_go_while_all_are_ended(_backend, rank, world):
    if rank == 1:
        return
    backend = importlib.import_module("brigade.torch").find()
    store, until = dist.HashStore(), time.monotonic() + 1.5
    timeout = datetime.timedelta(seconds=20)

    def again_and_again(act):
        turns = 0
        while time.monotonic() < until:
            act()
            turns += 1
        return turns

    with ThreadPoolExecutor() as threads:
        makes = [lambda: backend.create(store, 0, 1, timeout, [0])] * 2
        ends = [lambda: backend.end_all("", False)] * 2
        for turns in threads.map(again_and_again, makes + ends):
            assert turns > 0


def end_groups_in_a_child(group):
    """A child of fork ends those of its parent; how it ends."""
    pid = os.fork()
    if pid == 0:
        signal.alarm(20)
        dist.destroy_process_group(group)
        del group
        gc.collect()
        dist.destroy_process_group()
        gc.collect()
        os._exit(0)
    return os.waitpid(pid, 0)[1]


@case(bare=True, backends=("brigade",), quick=True)
def a_child_of_fork_that_ends_groups_of_its_parents(backend, rank, world):
    begin(backend, 40)
    group = dist.new_group()

    def sums():
        tensors = [torch.ones(1), torch.ones(1)]
        calls = zip(tensors, [None, group])
        return tensors, [dist.all_reduce(one, group=at, async_op=True) for one, at in calls]

    works = sums()[1]
    works += [dist.isend(torch.ones(1), 1)] if rank == 0 else []
    works += [dist.irecv(torch.ones(1), 0)] if rank == 1 else []
    for work in works:
        work.wait()
    assert end_groups_in_a_child(group) == 0
    if rank == 0:
        # While calls go on.
        tensors, works = sums()
        assert end_groups_in_a_child(group) == 0
    dist.monitored_barrier()
    if rank > 0:
        tensors, works = sums()
    for work in works:
        work.wait()
    assert [tensor.item() for tensor in tensors] == [world, world], tensors
    dist.destroy_process_group()
