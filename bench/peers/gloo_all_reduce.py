"""One rank of PyTorch's Gloo, timing all_reduce of float32 as mpi_all_reduce.c times MPI's.

    python gloo_all_reduce.py STORE RANK RANKS BUDGET_US CALLS_MIN CALLS_MAX WARMUP

Sizes in bytes come in by standard input, a line each, the same on every rank; rank 0 says when it
is ready, and answers each with a line of JSON. PyTorch offers all_reduce in place only, which
spares Gloo the writing of a second buffer.
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


def sample_us(data):
    dist.barrier()
    time.process_time_ns()  # Brigade's bench reads this clock here; so do we.
    start = time.perf_counter_ns()
    dist.all_reduce(data)
    return (time.perf_counter_ns() - start) / 1e3


def slowest(times):
    """The largest over the ranks of each."""
    times = torch.tensor(times, dtype=torch.float64)
    dist.all_reduce(times, dist.ReduceOp.MAX)
    return times.tolist()


def measure(size):
    data = torch.full((size // 4,), float(rank + 1))
    dist.all_reduce(data)
    wrong = torch.tensor(int((data != ranks * (ranks + 1) / 2).sum()))
    dist.all_reduce(wrong)
    data.zero_()  # the one value that stays the same, summed in place over and over
    last_us = slowest([sample_us(data) for _ in range(warmup)])[-1]
    calls = min(max(int(budget_us / last_us), calls_min), calls_max)
    times = sorted(slowest([sample_us(data) for _ in range(calls)]))
    p50, p99 = times[(calls + 1) // 2 - 1], times[(calls * 99 + 99) // 100 - 1]
    return {"us_p50": p50, "us_p99": p99, "us_min": times[0], "calls": calls, "wrong": int(wrong)}


torch.set_num_threads(1)
patience = datetime.timedelta(seconds=60)
dist.init_process_group("gloo", f"file://{store}", rank=rank, world_size=ranks, timeout=patience)
dist.barrier()
if rank == 0:
    print("ready", file=answers, flush=True)
for line in sys.stdin:
    answer = measure(int(line))
    if rank == 0:
        print(json.dumps(answer), file=answers, flush=True)
dist.destroy_process_group()
