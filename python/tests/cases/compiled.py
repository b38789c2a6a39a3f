"""Collectives within what torch.compile makes of a function."""

import importlib
import os

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional

from .case import case


def calls(x, group, world):
    """All that torch knows how to trace, and something in between that it may move."""
    parts = [len(x) // world] * world
    return [
        functional.all_reduce(2 * x, "sum", group) + 1,
        functional.all_reduce_coalesced([x, x + 1], "max", group)[1] * 2,
        functional.all_gather_tensor(x.square(), 0, group) - 1,
        functional.reduce_scatter_tensor(x + 3, "avg", 0, group) * 2,
        functional.all_to_all_single(x - 1, parts, parts, group) * 3,
        functional.broadcast(x * 5, 1, group) + 2,
        functional.permute_tensor(x + 7, [(r + 1) % world for r in range(world)], group) * 2,
    ]


def calls_with_gradients(x, group, world):
    parts = [len(x) // world] * world
    everyone = functional.all_gather_tensor_autograd(x.square(), 0, group)
    part = functional.reduce_scatter_tensor_autograd(everyone.sin(), "sum", 0, group)
    turned = functional.all_to_all_single_autograd(part * x, parts, parts, group)
    return [(turned * torch.arange(float(len(x)))).sum()]


def calls_in_place(x, group, world):
    total, everyone = x + 1, torch.empty(len(x) * world)
    dist.all_reduce(total, group=group)
    dist.all_gather_into_tensor(everyone, total * 2, group=group)
    return [total + 1, everyone]


def compile_and_compare(compiler, rank, world):
    for function in [calls, calls_with_gradients, calls_in_place]:
        found = []
        for run in [function, torch.compile(function, backend=compiler, fullgraph=True)]:
            x = torch.arange(4.0 * world) + 10 * rank
            x.requires_grad_(function is calls_with_gradients)
            results = run(x, dist.group.WORLD, world)
            if x.requires_grad:
                results[0].backward()
                results.append(x.grad)
            found.append([result.detach() + 0 for result in results])
        torch.testing.assert_close(found[1], found[0])


@case(worlds=(2,), quick=True)
def traced(rank, world):
    compile_and_compare("aot_eager", rank, world)


@case(worlds=(2,), seconds=400)
def compiled_to_c(rank, world):
    inductor = importlib.import_module("torch._inductor.config")
    # What it makes stays in the folder of this case, and is for this one time.
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = os.path.abspath("inductor")
    with inductor.patch(compile_threads=1):
        compile_and_compare("inductor", rank, world)
