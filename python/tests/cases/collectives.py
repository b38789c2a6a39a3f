"""Reductions, and what tensors may be."""

import torch
import torch.distributed as dist

from .case import case, refused

SUMMED = [
    torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32,
    torch.int8, torch.uint8, torch.complex64, torch.complex128,
]


def part(rank, dtype, shape=(7,)):
    """What a rank brings; small whole numbers, so that every type is exact."""
    count = torch.Size(shape).numel()
    values = (torch.arange(count) * 3 + rank * 5) % 7 + 1
    values = values.reshape(shape).to(dtype)
    return values * (1 + 2j) if dtype.is_complex else values


def parts(world, dtype, shape=(7,)):
    return torch.stack([part(rank, dtype, shape) for rank in range(world)])


def check_sums(rank, world, dtypes):
    for dtype in dtypes:
        for shape in [(1,), (7,), (3, 5), (70_000,), (0,), ()]:
            tensor = part(rank, dtype, shape)
            dist.all_reduce(tensor)
            torch.testing.assert_close(tensor, parts(world, dtype, shape).sum(0).to(dtype))


@case(quick=True)
def sums_of_every_type(rank, world):
    check_sums(rank, world, SUMMED)


@case(gloo_fails=True)
def sums_of_short_integers(rank, world):
    check_sums(rank, world, [torch.int16])


@case(quick=True)
def every_operator(rank, world):
    op = dist.ReduceOp
    for dtype in [torch.float32, torch.int64, torch.uint8]:
        for how, wanted in [
            (op.PRODUCT, parts(world, dtype).prod(0)),
            (op.MIN, parts(world, dtype).amin(0)),
            (op.MAX, parts(world, dtype).amax(0)),
        ]:
            tensor = part(rank, dtype)
            dist.all_reduce(tensor, how)
            torch.testing.assert_close(tensor, wanted.to(dtype))
    for how, function in [
        (op.BAND, torch.bitwise_and), (op.BOR, torch.bitwise_or), (op.BXOR, torch.bitwise_xor),
    ]:
        tensor, wanted = part(rank, torch.int32), part(0, torch.int32)
        dist.all_reduce(tensor, how)
        for other in range(1, world):
            wanted = function(wanted, part(other, torch.int32))
        torch.testing.assert_close(tensor, wanted)


@case(backends=("brigade",), needs_native=True)
def means_and_factors(rank, world):
    for dtype in [torch.float32, torch.bfloat16, torch.complex64]:
        tensor = part(rank, dtype)
        dist.all_reduce(tensor, dist.ReduceOp.AVG)
        wanted = parts(world, dtype).to(torch.complex128).mean(0)
        torch.testing.assert_close(tensor.to(torch.complex128), wanted, rtol=1e-2, atol=1e-2)
    for factor in [0.5, torch.tensor(0.5)]:
        tensor = part(rank, torch.float32)
        dist.all_reduce(tensor, dist._make_nccl_premul_sum(factor))
        torch.testing.assert_close(tensor, parts(world, torch.float32).sum(0) / 2)


@case(backends=("brigade",))
def booleans(rank, world):
    mine = torch.tensor([True, False, rank == 0, rank == 1])
    for how, wanted in [
        (dist.ReduceOp.SUM, [True, False, True, True]),
        (dist.ReduceOp.MAX, [True, False, True, True]),
        (dist.ReduceOp.BOR, [True, False, True, True]),
        (dist.ReduceOp.PRODUCT, [True, False, False, False]),
        (dist.ReduceOp.MIN, [True, False, False, False]),
    ]:
        tensor = mine.clone()
        dist.all_reduce(tensor, how)
        assert tensor.tolist() == wanted, (how, tensor)
    everyone = [torch.empty(4, dtype=torch.bool) for _ in range(world)]
    dist.all_gather(everyone, mine)
    assert everyone[rank].tolist() == mine.tolist()


@case(backends=("brigade",), quick=True)
def what_is_only_read_may_be_one_number_many_times(rank, world):
    tensor = torch.full((1,), 3.0).expand(4) if rank == 0 else torch.zeros(4)
    dist.broadcast(tensor, 0)
    assert bool((tensor == 3).all())
    part = torch.ones(4) if rank == 0 else torch.ones(1).expand(4)
    dist.reduce(part, 0)
    assert bool((part == (world if rank == 0 else 1)).all())


@case(gloo_fails=True, quick=True)
def views_with_steps(rank, world):
    base = part(rank, torch.float32, (6, 4))
    kept = base.clone()
    dist.all_reduce(base[:, ::2])
    kept[:, ::2] = parts(world, torch.float32, (6, 4)).sum(0)[:, ::2]
    torch.testing.assert_close(base, kept)
    turned = part(rank, torch.float32, (3, 5)).t()
    dist.broadcast(turned, 1)
    torch.testing.assert_close(turned, part(1, torch.float32, (3, 5)).t())
    out = torch.zeros(world, 8)[:, ::2]
    dist.all_gather_into_tensor(out, torch.arange(8.0)[::2] + rank)
    wanted = torch.stack([torch.arange(8.0)[::2] + r for r in range(world)])
    torch.testing.assert_close(out, wanted)


@case(backends=("brigade",))
def views_that_overlap_are_refused(rank, world):
    refused(dist.all_reduce, torch.ones(1).expand(4), kind=RuntimeError)
    sparse = torch.ones(4).to_sparse()
    refused(dist.all_reduce, sparse, dist.ReduceOp.MAX, kind=(TypeError, RuntimeError))
    refused(dist.broadcast, sparse, 0, kind=(TypeError, RuntimeError))
    refused(dist.all_reduce, torch.ones(2, dtype=torch.uint16), kind=(TypeError, RuntimeError))
    complex_tensor = torch.ones(2, dtype=torch.complex64)
    refused(dist.all_reduce, complex_tensor, dist.ReduceOp.MAX, kind=Exception)
    # The group is as good as before.
    tensor = part(rank, torch.float32)
    dist.all_reduce(tensor)
    torch.testing.assert_close(tensor, parts(world, torch.float32).sum(0))


@case(quick=True)
def every_root(rank, world):
    for root in range(world):
        tensor = part(rank, torch.float32)
        dist.broadcast(tensor, root)
        torch.testing.assert_close(tensor, part(root, torch.float32))
        tensor = part(rank, torch.float32)
        dist.reduce(tensor, root)
        if rank == root:
            torch.testing.assert_close(tensor, parts(world, torch.float32).sum(0))
        mine = part(rank, torch.float32)
        everyone = [torch.empty(7) for _ in range(world)] if rank == root else None
        dist.gather(mine, everyone, root)
        if rank == root:
            torch.testing.assert_close(torch.stack(everyone), parts(world, torch.float32))
        pieces = list(parts(world, torch.float32) + root) if rank == root else None
        dist.scatter(mine, pieces, root)
        torch.testing.assert_close(mine, part(rank, torch.float32) + root)


@case()
def types_that_are_only_moved(rank, world):
    for dtype in [torch.uint16, torch.uint32, torch.float8_e4m3fn, torch.float8_e5m2, torch.bool]:
        tensor = part(rank, torch.float32).to(dtype)
        dist.broadcast(tensor.view(torch.uint8), 1)
        assert tensor.tolist() == part(1, torch.float32).to(dtype).tolist()


@case(backends=("brigade",))
def rare_types_move_as_they_are(rank, world):
    for dtype in [torch.uint16, torch.uint32, torch.float8_e4m3fn, torch.complex32]:
        tensor = part(rank, torch.float32).to(dtype)
        dist.broadcast(tensor, 1)
        assert tensor.tolist() == part(1, torch.float32).to(dtype).tolist()


@case()
def parameters_and_inference(rank, world):
    leaf = torch.nn.Parameter(part(rank, torch.float32, (4, 4)).t())
    dist.all_reduce(leaf)
    torch.testing.assert_close(leaf.data, parts(world, torch.float32, (4, 4)).sum(0).t())
    with torch.inference_mode():
        tensor = part(rank, torch.float32)
    with torch.no_grad():
        dist.all_reduce(tensor)
    torch.testing.assert_close(tensor.clone(), parts(world, torch.float32).sum(0))


@case()
def large(rank, world):
    tensor = torch.full((6_000_001,), float(rank + 1))
    dist.all_reduce(tensor)
    assert bool((tensor == world * (world + 1) / 2).all())
