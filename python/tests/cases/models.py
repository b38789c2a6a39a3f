"""Data parallel training: DistributedDataParallel and its company."""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import (
    default_hooks, powerSGD_hook, quantization_hooks,
)
from torch.distributed.algorithms.ddp_comm_hooks.post_localSGD_hook import (
    PostLocalSGDState, post_localSGD_hook,
)
from torch.distributed.algorithms.join import Join
from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel as DDP

from .case import case
from .training import batch, loss, model, optimizer, reference, same, share, train

# What gradients of half as many bits change.
HALF = {"rtol": 1e-2, "atol": 1e-2}


def mean(values):
    tensor = torch.tensor(values)
    dist.all_reduce(tensor)
    return tensor / dist.get_world_size()


@case(quick=True)
def ddp(rank, world):
    # Small buckets, so that several are on their way.
    small = {"bucket_cap_mb": 0.002}
    for more in [small, {"static_graph": True}, {"gradient_as_bucket_view": True}]:
        parallel = DDP(model(), **more)
        losses = train(parallel, optimizer(parallel.parameters()), rank, world)
        wanted, single = reference()
        same(dict(parallel.named_parameters()), single)
        torch.testing.assert_close(mean(losses), torch.tensor(wanted))


@case()
def ddp_finds_unused_parameters(rank, world):
    class Sometimes(nn.Module):
        def __init__(self):
            super().__init__()
            self.used, self.rarely = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x, rarely):
            return self.rarely(x) if rarely else self.used(x)

    torch.manual_seed(5)
    parallel = DDP(Sometimes(), find_unused_parameters=True)
    for step in range(4):
        parallel(torch.ones(2, 4), step % 2 == 1).sum().backward()
    for parameter in parallel.parameters():
        others = [torch.empty_like(parameter.grad) for _ in range(world)]
        dist.all_gather(others, parameter.grad)
        torch.testing.assert_close(others[0], others[-1])


@case()
def ddp_accumulates(rank, world):
    parallel, single = DDP(model()), model()
    for step in range(3):
        x, target = batch(step)
        loss(single(x), target).backward()
        mine = share(x, rank, world), share(target, rank, world)
        if step < 2:
            with parallel.no_sync():
                loss(parallel(mine[0]), mine[1]).backward()
        else:
            loss(parallel(mine[0]), mine[1]).backward()
    for ours, wanted in zip(parallel.parameters(), single.parameters()):
        torch.testing.assert_close(ours.grad, wanted.grad)


@case(quick=True)
def ddp_joins_with_uneven_inputs(rank, world):
    parallel = DDP(model(blocks=1))
    update = optimizer(parallel.parameters())
    with Join([parallel]):
        for step in range(2 + 2 * rank):
            x, target = batch(step)
            loss(parallel(x), target).backward()
            update.step()
            update.zero_grad()
    for parameter in parallel.parameters():
        others = [torch.empty_like(parameter) for _ in range(world)]
        dist.all_gather(others, parameter.detach())
        for other in others:
            torch.testing.assert_close(other, others[0])


@case()
def ddp_with_hooks(rank, world):
    for hook, tolerance in [
        (default_hooks.allreduce_hook, {}),
        (default_hooks.fp16_compress_hook, HALF),
        (default_hooks.bf16_compress_hook, {"rtol": 5e-2, "atol": 5e-2}),
    ]:
        parallel = DDP(model(), bucket_cap_mb=0.002)
        parallel.register_comm_hook(None, hook)
        train(parallel, optimizer(parallel.parameters()), rank, world)
        same(dict(parallel.named_parameters()), reference()[1], **tolerance)


@case()
def ddp_with_hooks_of_more_calls(rank, world):
    group = dist.group.WORLD
    local = PostLocalSGDState(None, dist.new_group(), start_localSGD_iter=9)
    for state, hook, tolerance in [
        # In place of a sum it gathers, and with several buckets needs an order as PowerSGD does.
        (group, quantization_hooks.quantization_pertensor_hook, {"rtol": 0.1, "atol": 0.02}),
        (local, post_localSGD_hook, {}),
        (None, default_hooks.fp16_compress_wrapper(default_hooks.allreduce_hook), HALF),
    ]:
        parallel = DDP(model())
        parallel.register_comm_hook(state, hook)
        train(parallel, optimizer(parallel.parameters()), rank, world)
        same(dict(parallel.named_parameters()), reference()[1], **tolerance)


@case(needs_native=True)
def ddp_with_built_in_hooks(rank, world):
    for hook in dist.BuiltinCommHookType.ALLREDUCE, dist.BuiltinCommHookType.FP16_COMPRESS:
        parallel = DDP(model(), bucket_cap_mb=0.002)
        parallel._register_builtin_comm_hook(hook)
        train(parallel, optimizer(parallel.parameters()), rank, world)
        same(dict(parallel.named_parameters()), reference()[1], **HALF)


@case(quick=True)
def ddp_with_power_sgd(rank, world):
    state = powerSGD_hook.PowerSGDState(
        None, matrix_approximation_rank=8, start_powerSGD_iter=2, use_error_feedback=True
    )
    parallel = DDP(model())
    parallel.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    losses = mean(train(parallel, optimizer(parallel.parameters()), rank, world, steps=8))
    assert losses[-1] < losses[0]
    for parameter in parallel.parameters():
        others = [torch.empty_like(parameter) for _ in range(world)]
        dist.all_gather(others, parameter.detach())
        torch.testing.assert_close(others[0], others[-1])


def power_sgd_in_order(state, bucket) -> torch.futures.Future[torch.Tensor]:
    """Torch's hook, one bucket after the other (docs/PYTHON.md says why)."""
    future = powerSGD_hook.powerSGD_hook(state, bucket)
    future.wait()
    return future


@case()
def ddp_with_power_sgd_in_buckets(rank, world):
    state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=2, start_powerSGD_iter=2)
    parallel = DDP(model(blocks=12), bucket_cap_mb=0.002)
    parallel.register_comm_hook(state, power_sgd_in_order)
    train(parallel, optimizer(parallel.parameters()), rank, world, steps=20)
    for parameter in parallel.parameters():
        others = [torch.empty_like(parameter) for _ in range(world)]
        dist.all_gather(others, parameter.detach())
        torch.testing.assert_close(others[0], others[-1])


@case()
def ddp_with_buffers(rank, world):
    torch.manual_seed(3)
    parallel = DDP(nn.Sequential(nn.Linear(16, 8), nn.BatchNorm1d(8), nn.Linear(8, 16)))
    train(parallel, optimizer(parallel.parameters()), rank, world)
    parallel(share(batch(9)[0], rank, world))
    for buffer in [parallel.module[1].running_mean]:
        told = buffer.clone()
        dist.broadcast(told, 0)
        # The last forward pass began with rank 0's buffers.
        assert torch.isfinite(told).all()


@case()
def zero_redundancy_optimizer(rank, world):
    for overlaps in [False, True]:
        parallel = DDP(model(), gradient_as_bucket_view=overlaps)
        update = ZeroRedundancyOptimizer(
            parallel.parameters(), torch.optim.Adam, lr=0.01,
            parameters_as_bucket_view=overlaps,
        )
        train(parallel, update, rank, world)
        adam = reference(make_optimizer=lambda parameters: torch.optim.Adam(parameters, lr=0.01))
        same(dict(parallel.named_parameters()), adam[1], rtol=1e-4, atol=1e-5)
    update.consolidate_state_dict(0)
    if rank == 0:
        assert len(update.state_dict()["state"]) == len(list(parallel.parameters()))


@case()
def averaged_models(rank, world):
    mine = model(blocks=1)
    with torch.no_grad():
        for parameter in mine.parameters():
            parameter.fill_(rank)
            parameter.grad = torch.zeros_like(parameter)
    PeriodicModelAverager(period=2).average_parameters(mine.parameters())
    for parameter in mine.parameters():
        assert bool((parameter == (world - 1) / 2).all())


@case(needs_native=True)
def sparse_gradients(rank, world):
    torch.manual_seed(1)
    parallel = DDP(nn.EmbeddingBag(10, 4, sparse=True, mode="sum"))
    parallel(torch.tensor([[rank, 5, rank]])).sum().backward()
    wanted = torch.zeros(10, 4)
    for other in range(world):
        wanted[other] += 2 / world
    wanted[5] += 1
    torch.testing.assert_close(parallel.module.weight.grad.to_dense(), wanted)
