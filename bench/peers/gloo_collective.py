"""One rank of PyTorch's Gloo, timing collectives of float32 as mpi_collective.c times MPI's.

    python gloo_collective.py STORE RANK RANKS BUDGET_US CALLS_MIN CALLS_MAX WARMUP

Cases come in by standard input, a line each, a collective's name and a size in bytes (nccl-tests':
of the longest tensor), the same on every rank; rank 0 says when it is ready, and answers each with
a line of JSON. PyTorch offers all_reduce, reduce and broadcast in place only, which spares Gloo the
writing of a second buffer.
"""

import datetime
import json
import os
import sys
import time

import torch
import torch.distributed as dist

answers = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)  # Gloo may print sentences of its own
store, rank, ranks, budget_us, calls_min, calls_max, warmup = sys.argv[1], *map(int, sys.argv[2:])


def blocks(tensor):
    """What the root gathers into or scatters from."""
    return list(tensor.chunk(ranks)) if rank == 0 else None


def block_of(tensor):
    return tensor[:len(tensor) // ranks]


def own(tensor):
    return tensor.view(ranks, -1)[rank]


# What is called with a long tensor a and another one b; and what it leaves where, of rank numbers.
CALLS = {
    "all-reduce": lambda a, b: dist.all_reduce(a),
    "reduce": lambda a, b: dist.reduce(a, 0),
    "broadcast": lambda a, b: dist.broadcast(a, 0),
    "reduce-scatter": lambda a, b: dist.reduce_scatter_tensor(block_of(b), a),
    "all-gather": lambda a, b: dist.all_gather_into_tensor(b, block_of(a)),
    "all-to-all": lambda a, b: dist.all_to_all_single(b, a),
    "gather": lambda a, b: dist.gather(block_of(a), blocks(b), 0),
    "scatter": lambda a, b: dist.scatter(block_of(b), blocks(a), 0),
}


def sent(source, elements):
    """A rank's numbers: whose they are, and in which block of it they lie."""
    block = torch.arange(elements) // (elements // ranks)
    return (source + 1 + ranks * block).float()


def wrong_elements(name, a, b):
    """How many elements a call leaves wrong here."""
    elements = len(a)
    inputs = torch.stack([sent(source, elements) for source in range(ranks)])
    a.copy_(inputs[rank])
    CALLS[name](a, b)
    summed, first = inputs.sum(0), inputs.view(ranks, ranks, -1)
    found, expected = {
        "all-reduce": lambda: (a, summed),
        "reduce": lambda: (a, summed) if rank == 0 else (a[:0], a[:0]),
        "broadcast": lambda: (a, inputs[0]),
        "reduce-scatter": lambda: (block_of(b), own(summed)),
        "all-gather": lambda: (b, first[:, 0].flatten()),
        "all-to-all": lambda: (b, first[:, rank].flatten()),
        "gather": lambda: (b, first[:, 0].flatten()) if rank == 0 else (b[:0], b[:0]),
        "scatter": lambda: (block_of(b), own(inputs[0])),
    }[name]()
    wrong = (found != expected).sum()
    dist.all_reduce(wrong)
    return int(wrong)


def sample_us(call, a, b):
    dist.barrier()
    time.process_time_ns()  # Brigade's bench reads this clock here; so do we.
    start = time.perf_counter_ns()
    call(a, b)
    return (time.perf_counter_ns() - start) / 1e3


def slowest(times):
    """The largest over the ranks of each."""
    times = torch.tensor(times, dtype=torch.float64)
    dist.all_reduce(times, dist.ReduceOp.MAX)
    return times.tolist()


def measure(name, size):
    a, b = torch.zeros(size // 4), torch.zeros(size // 4)
    wrong = wrong_elements(name, a, b)
    a.zero_()  # the one value that stays the same, summed in place over and over
    call = CALLS[name]
    last_us = slowest([sample_us(call, a, b) for _ in range(warmup)])[-1]
    calls = min(max(int(budget_us / last_us), calls_min), calls_max)
    times = sorted(slowest([sample_us(call, a, b) for _ in range(calls)]))
    p50, p99 = times[(calls + 1) // 2 - 1], times[(calls * 99 + 99) // 100 - 1]
    return {"us_p50": p50, "us_p99": p99, "us_min": times[0], "calls": calls, "wrong": wrong}


torch.set_num_threads(1)
patience = datetime.timedelta(seconds=60)
dist.init_process_group("gloo", f"file://{store}", rank=rank, world_size=ranks, timeout=patience)
dist.barrier()
if rank == 0:
    print("ready", file=answers, flush=True)
for line in sys.stdin:
    collective, bytes_text = line.split()
    answer = measure(collective, int(bytes_text))
    if rank == 0:
        print(json.dumps(answer), file=answers, flush=True)
dist.destroy_process_group()
