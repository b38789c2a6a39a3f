"""torch.distributed over Brigade beside gloo: latencies of blocking calls, and a DDP step.

    python bench/compare.py [--rounds 9] [--parameters 25e6]

Turns change places, so that what else the machine does strikes both: each round times every
back-end once, and the table has the best and the median round of each. Ratios are the median of
those of the rounds, and that of the best rounds. The step is also timed without any all-reduce: no
back-end can be faster than that.

Gradients are allocated anew in each step. Whether malloc gives the memory of the last ones back to
the system in between is luck of the heap, and then the step has page faults that are the same for
all back-ends: they are counted, and the step is timed once more with a malloc that keeps memory.
"""

import argparse
import ctypes
import operator
import os
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
# Gradients copied to buckets and back, as by default, or lying there; and copied once more.
STEPS = ["DDP step", "DDP step, views", "DDP step, kept"]
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


def keep_memory():
    """Have malloc keep what is freed, from now on."""
    libc = ctypes.CDLL(None)
    trim_threshold, mmap_threshold = -1, -3
    kept = libc.mallopt(mmap_threshold, 32 << 20) and libc.mallopt(trim_threshold, 2**31 - 1)
    assert kept, "malloc takes no options"


def page_faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


def step_times(groups, rounds, parameters, what):
    """Microseconds of forward, backward with its all-reduces, and update; page faults of one."""
    width = 1024
    layers = max(1, int(parameters / (width * width)))
    x = torch.randn(8, width)
    steps = {}
    for name in [*BACKENDS, NOBODY]:
        torch.manual_seed(0)
        single = nn.Sequential(*[nn.Linear(width, width) for _ in range(layers)])
        group = groups.get(name, groups["gloo"])
        model = DistributedDataParallel(
            single, process_group=group, gradient_as_bucket_view="views" in what
        )
        if name == NOBODY:
            model.register_comm_hook(None, keep_gradients)
        update = torch.optim.SGD(model.parameters(), lr=1e-3)

        def step(model=model, update=update):
            model(x).square().mean().backward()
            update.step()
            update.zero_grad()

        steps[name] = step
    found, faults = {}, {}
    for turn in range(rounds):
        for name in list(steps)[:: 1 if turn % 2 else -1]:
            dist.barrier()
            steps[name]()
            before = page_faults()
            found.setdefault((name, what), []).append(timed(steps[name], 3))
            faults.setdefault((name, what), []).append((page_faults() - before) / 3)
    return found, faults


def be_rank(rank, world, port, arguments):
    os.environ.update(
        RANK=str(rank), WORLD_SIZE=str(world), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port)
    )
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    groups = {name: dist.new_group(backend=name) for name in BACKENDS}
    found, faults = latencies(groups, arguments.rounds), {}
    for what in STEPS * (world > 1):
        if "kept" in what:
            keep_memory()
        times, faulted = step_times(groups, arguments.rounds, arguments.parameters, what)
        found.update(times)
        faults.update(faulted)
    if rank == 0:
        for key, times in found.items():
            name, what = key
            title = what if what in STEPS else f"all_reduce {what} B"
            best, middle = f"{min(times):12.1f} us", f"{statistics.median(times):12.1f} us"
            also = f"{statistics.median(faults[key]):8.0f} faults" if key in faults else ""
            print(f"{world} ranks  {title:20} {name:10} {best} {middle} {also}".rstrip(), flush=True)
        for what in SIZES + STEPS * (world > 1):
            for name in ["brigade", NOBODY][: 1 + (what in STEPS)]:
                ours, theirs = found[name, what], found["gloo", what]
                middle = statistics.median(map(operator.truediv, theirs, ours))
                best = min(theirs) / min(ours)
                ratios = f"{middle:.2f}, best rounds {best:.2f}"
                print(f"{world} ranks  {what}: gloo / {name} = {ratios}")
    dist.barrier()
    dist.destroy_process_group()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--parameters", type=float, default=25e6)
    arguments = parser.parse_args()
    for world in [1, 2]:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        pids = []
        for rank in range(world):
            pid = os.fork()
            if pid == 0:
                be_rank(rank, world, port, arguments)
                os._exit(0)
            pids.append(pid)
        for pid in pids:
            assert os.waitpid(pid, 0)[1] == 0


if __name__ == "__main__":
    main()
