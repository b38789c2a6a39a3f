"""torch.distributed over Brigade beside gloo: latencies of blocking calls, and a DDP step.

    python bench/compare.py [--rounds 9] [--parameters 25e6]

Turns change places, so that what else the machine does strikes both: each round times every
back-end once, and the table has the best and the median round of each. Ratios are the median of
those of the rounds, and that of the best rounds. The step is also timed without any all-reduce: no
back-end can be faster than that.

Gradients are allocated anew in each step, and page faults are counted: glibc may give the memory of
the last ones back to the system in between, unless the backend has told it not to. malloc is one
for the whole process, so where back-ends take turns it keeps memory for both. That is not what gloo
has where Brigade is not: in the last rows every backend has processes of its own, started in turn.
"""

import argparse
import operator
import os
import pickle
import resource
import socket
import statistics
import time

import brigade
import numpy
import torch
import torch.distributed as dist
from brigade.library import LIBRARY, Span
from torch import nn
from torch.nn.parallel import DistributedDataParallel

BACKENDS = ["brigade", "gloo"]
SIZES = [4, 64 << 10, 4 << 20]
# Gradients copied to buckets and back, as by default, or lying there.
STEPS = ["DDP step", "DDP step, views"]
# By default, in processes that have one backend.
ALONE = "DDP step, alone"
# A step whose gradients go nowhere.
NOBODY = "nobody"


def timed(call, times):
    """Microseconds of one of so many calls."""
    begin = time.perf_counter()
    for _ in range(times):
        call()
    return (time.perf_counter() - begin) / times * 1e6


def without_torch():
    """The same call through brigade.h, from Python: what the transport takes, and about 1 us."""
    group = [brigade.unique_id() if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(group, 0)
    comm = brigade.Communicator.from_id(group[0], dist.get_rank(), dist.get_world_size())
    numbers = numpy.ones(1, "f4")
    span = Span(numbers, writable=True)
    arguments = span.address, span.address, 1, span.dtype, 0, comm._handle, None
    return lambda: LIBRARY.brigade_all_reduce(*arguments), comm, span


def latencies(groups, rounds):
    found = {}
    bare, *_kept = without_torch()
    for turn in range(rounds):
        dist.barrier()
        found.setdefault(("no torch", 4), []).append(timed(bare, 1000))
        for size in SIZES:
            tensor = torch.zeros(size // 4)
            times = 500 if size == 4 else max(10, (8 << 20) // size)
            for name in BACKENDS[:: 1 if turn % 2 else -1]:
                dist.barrier()
                call = lambda group=groups[name]: dist.all_reduce(tensor, group=group)
                timed(call, 3)
                found.setdefault((name, size), []).append(timed(call, times))
    return found


def keep_gradients(_, bucket):
    kept = torch.futures.Future()
    kept.set_result(bucket.buffer())
    return kept


def page_faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


def make_step(parameters, **choices):
    """The model in DDP, and its step: forward, backward with its all-reduces, and update."""
    width = 1024
    layers = max(1, int(parameters / (width * width)))
    torch.manual_seed(0)
    x = torch.randn(8, width)
    single = nn.Sequential(*[nn.Linear(width, width) for _ in range(layers)])
    model = DistributedDataParallel(single, **choices)
    update = torch.optim.SGD(model.parameters(), lr=1e-3)

    def step():
        model(x).square().mean().backward()
        update.step()
        update.zero_grad()

    return model, step


def timed_step(step, times=3):
    """Microseconds and page faults of one, after one that nobody times."""
    dist.barrier()
    step()
    before = page_faults()
    took = timed(step, times)
    return took, (page_faults() - before) / times


def step_times(groups, rounds, parameters, what):
    steps = {}
    for name in [*BACKENDS, NOBODY]:
        group = groups.get(name, groups["gloo"])
        model, steps[name] = make_step(
            parameters, process_group=group, gradient_as_bucket_view="views" in what
        )
        if name == NOBODY:
            model.register_comm_hook(None, keep_gradients)
    found = {}
    for turn in range(rounds):
        for name in list(steps)[:: 1 if turn % 2 else -1]:
            found.setdefault((name, what), []).append(timed_step(steps[name]))
    return found


def begin(backend, rank, world, port):
    os.environ.update(
        RANK=str(rank), WORLD_SIZE=str(world), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port)
    )
    torch.set_num_threads(1)
    dist.init_process_group(backend)


def be_rank_of_all(rank, world, port, arguments):
    """Be a rank that has every backend; what it measured, by backend and by what."""
    begin("gloo", rank, world, port)
    groups = {name: dist.new_group(backend=name) for name in BACKENDS}
    found = latencies(groups, arguments.rounds)
    for what in STEPS * (world > 1):
        found.update(step_times(groups, arguments.rounds, arguments.parameters, what))
    return found


def be_rank_of_one(backend, rank, world, port, arguments):
    """Be a rank that has one backend; what a step takes after the first three."""
    begin(backend, rank, world, port)
    _, step = make_step(arguments.parameters)
    for _ in range(3):
        step()
    return timed_step(step, 10)


def processes(world, life, *arguments):
    """What rank 0 of a new world found; its ranks are processes of their own."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    readable, writable = os.pipe()
    pids = []
    for rank in range(world):
        pid = os.fork()
        if pid == 0:
            found = life(*arguments[:-1], rank, world, port, arguments[-1])
            if rank == 0:
                os.write(writable, pickle.dumps(found))
            dist.barrier()
            dist.destroy_process_group()
            os._exit(0)
        pids.append(pid)
    os.close(writable)
    with open(readable, "rb") as pipe:
        found = pipe.read()
    for pid in pids:
        assert os.waitpid(pid, 0)[1] == 0
    return pickle.loads(found)


def show(world, found):
    """A line for every backend and what was timed, then the ratios."""
    for (name, what), rows in found.items():
        title = what if isinstance(what, str) else f"all_reduce {what} B"
        times, faults = zip(*rows) if isinstance(rows[0], tuple) else (rows, None)
        best, middle = f"{min(times):12.1f} us", f"{statistics.median(times):12.1f} us"
        also = f"{statistics.median(faults):8.0f} faults" if faults else ""
        print(f"{world} ranks  {title:20} {name:10} {best} {middle} {also}".rstrip(), flush=True)
    for name, what in found:
        if name in ("gloo", "no torch"):
            continue
        ours, theirs = (
            [row[0] if isinstance(row, tuple) else row for row in found[who, what]]
            for who in (name, "gloo")
        )
        middle = statistics.median(map(operator.truediv, theirs, ours))
        ratios = f"{middle:.2f}, best rounds {min(theirs) / min(ours):.2f}"
        print(f"{world} ranks  {what}: gloo / {name} = {ratios}", flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--parameters", type=float, default=25e6)
    arguments = parser.parse_args()
    for world in [1, 2]:
        show(world, processes(world, be_rank_of_all, arguments))
    found = {}
    for turn in range(arguments.rounds):
        for name in BACKENDS[:: 1 if turn % 2 else -1]:
            row = processes(2, be_rank_of_one, name, arguments)
            found.setdefault((name, ALONE), []).append(row)
    show(2, found)


if __name__ == "__main__":
    main()
