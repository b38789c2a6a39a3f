"""Parameters in pieces: FSDP, HSDP, tensor parallelism, checkpoints."""

import copy

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as checkpoint
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions, get_state_dict, set_model_state_dict, set_state_dict,
)
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp import MixedPrecisionPolicy, ShardingStrategy, fully_shard
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel, RowwiseParallel, SequenceParallel, loss_parallel, parallelize_module,
)

from .case import case
from .training import batch, loss, model, optimizer, reference, same, share, train


def whole(parallel):
    """Parameters as one process has them."""
    return {
        name: value.full_tensor() if isinstance(value, DTensor) else value
        for name, value in parallel.named_parameters()
    }


def sharded(mesh=None, **more):
    parallel = model()
    for block in parallel:
        fully_shard(block, mesh=mesh, **more)
    return fully_shard(parallel, mesh=mesh, **more)


def cpu_mesh(*shape, names=None):
    return init_device_mesh("cpu", shape, mesh_dim_names=names)


@case(quick=True)
def fsdp2(rank, world):
    mesh = cpu_mesh(world)
    for again in [True, False]:
        parallel = sharded(mesh, reshard_after_forward=again)
        losses = train(parallel, optimizer(parallel.parameters()), rank, world)
        wanted, single = reference()
        same(whole(parallel), single)
        total = torch.tensor(losses)
        dist.all_reduce(total)
        torch.testing.assert_close(total / world, torch.tensor(wanted))


@case()
def fsdp2_with_mixed_precision(rank, world):
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    parallel = sharded(cpu_mesh(world), mp_policy=policy)
    update = optimizer(parallel.parameters())
    losses = []
    for step in range(4):
        x, target = (share(part, rank, world) for part in batch(step))
        value = loss(parallel(x).float(), target)
        value.backward()
        update.step()
        update.zero_grad()
        losses.append(value.item())
    same(whole(parallel), reference()[1], rtol=0.1, atol=0.05)


@case()
def fsdp2_with_clipped_gradients(rank, world):
    # Parameters stay in halves of the world between forward and backward.
    parallel, single = sharded(cpu_mesh(world), reshard_after_forward=world // 2), model()
    updates = optimizer(parallel.parameters()), optimizer(single.parameters())
    for step in range(3):
        x, target = batch(step)
        loss(single(x), target).backward()
        loss(parallel(share(x, rank, world)), share(target, rank, world)).backward()
        norms = [
            nn.utils.clip_grad_norm_(one.parameters(), 0.05) for one in (parallel, single)
        ]
        torch.testing.assert_close(norms[0].full_tensor(), norms[1])
        for update in updates:
            update.step()
            update.zero_grad()
    same(whole(parallel), single)


@case()
def fsdp2_accumulates(rank, world):
    parallel, single = sharded(cpu_mesh(world)), model()
    for step in range(3):
        x, target = batch(step)
        loss(single(x), target).backward()
        parallel.set_requires_gradient_sync(step == 2)
        loss(parallel(share(x, rank, world)), share(target, rank, world)).backward()
    for ours, wanted in zip(parallel.parameters(), single.parameters()):
        torch.testing.assert_close(ours.grad.full_tensor(), wanted.grad)


@case(quick=True)
def fsdp1(rank, world):
    for strategy in [ShardingStrategy.FULL_SHARD, ShardingStrategy.SHARD_GRAD_OP]:
        parallel = FSDP(model(), sharding_strategy=strategy, device_id=torch.device("cpu"))
        losses = train(parallel, optimizer(parallel.parameters()), rank, world)
        wanted, single = reference()
        with FSDP.summon_full_params(parallel):
            found = {
                name.replace("_fsdp_wrapped_module.", ""): value
                for name, value in parallel.named_parameters()
            }
            same(found, single)
        total = torch.tensor(losses)
        dist.all_reduce(total)
        torch.testing.assert_close(total / world, torch.tensor(wanted))


@case(worlds=(4,))
def hsdp(rank, world):
    parallel = sharded(cpu_mesh(2, 2, names=("replicate", "shard")))
    train(parallel, optimizer(parallel.parameters()), rank, world)
    same(whole(parallel), reference()[1])


PLAN = {"up": ColwiseParallel(), "down": RowwiseParallel()}


@case(quick=True)
def tensor_parallel(rank, world):
    mesh = cpu_mesh(world)
    parallel = model()
    for block in parallel:
        parallelize_module(block, mesh, PLAN)
    # Every rank has the whole batch.
    losses = train(parallel, optimizer(parallel.parameters()), 0, 1)
    wanted, single = reference()
    same(whole(parallel), single)
    torch.testing.assert_close(torch.tensor(losses), torch.tensor(wanted))


@case(worlds=(4,))
def tensor_parallel_within_fsdp2(rank, world):
    mesh = cpu_mesh(2, 2, names=("data", "tensor"))
    parallel = model()
    for block in parallel:
        parallelize_module(block, mesh["tensor"], PLAN)
        fully_shard(block, mesh=mesh["data"])
    fully_shard(parallel, mesh=mesh["data"])
    train(parallel, optimizer(parallel.parameters()), mesh["data"].get_local_rank(), 2)
    same(whole(parallel), reference()[1])


@case()
def distributed_tensors(rank, world):
    mesh = cpu_mesh(world)
    torch.manual_seed(2)
    a, b = torch.randn(8, 12), torch.randn(12, 8)
    for placed_a in [Shard(0), Shard(1), Replicate()]:
        for placed_b in [Shard(0), Shard(1), Replicate()]:
            left, right = (
                distribute_tensor(whole_one, mesh, [placed])
                for whole_one, placed in [(a, placed_a), (b, placed_b)]
            )
            product = left @ right
            torch.testing.assert_close(product.full_tensor(), a @ b, rtol=1e-4, atol=1e-4)
    turned = distribute_tensor(a, mesh, [Shard(0)]).redistribute(mesh, [Shard(1)])
    torch.testing.assert_close(turned.to_local(), a.chunk(world, 1)[rank])
    uneven = distribute_tensor(torch.arange(7.0), mesh, [Shard(0)])
    torch.testing.assert_close(uneven.full_tensor(), torch.arange(7.0))


@case(quick=True)
def every_redistribution(rank, world):
    mesh = cpu_mesh(world)
    for rows, columns in [(8, 12), (7, 5)]:
        number = torch.randn(rows, columns, generator=torch.Generator().manual_seed(1))
        laid = [Shard(0), Shard(1), Replicate()]
        for begins in [*laid, Partial("sum"), Partial("avg"), Partial("max")]:
            if begins.is_partial():
                total = sum(number + r for r in range(world))
                known = {"sum": total, "avg": total / world, "max": number + world - 1}
                wanted = known[begins.reduce_op]
                begun = DTensor.from_local(number + rank, mesh, [begins])
            else:
                begun, wanted = distribute_tensor(number, mesh, [begins]), number
            for ends in laid:
                ended = begun.redistribute(mesh, [ends])
                torch.testing.assert_close(ended.full_tensor(), wanted)
    rows = distribute_tensor(torch.ones(7, 5), mesh, [Shard(0)]).requires_grad_()
    (rows.redistribute(mesh, [Shard(1)]).to_local() * (rank + 1)).sum().backward()
    columns = torch.ones(7, 5).chunk(world, 1)
    wanted = torch.cat([column * (r + 1) for r, column in enumerate(columns)], 1)
    torch.testing.assert_close(rows.grad.full_tensor(), wanted)


@case()
def a_sequence_in_parts(rank, world):
    mesh = cpu_mesh(world)
    torch.manual_seed(4)
    single = nn.Sequential(nn.LayerNorm(16), nn.Linear(16, 32), nn.Linear(32, 16))
    parallel = copy.deepcopy(single)
    parallelize_module(parallel, mesh, {
        "0": SequenceParallel(sequence_dim=0), "1": ColwiseParallel(input_layouts=Shard(0)),
        "2": RowwiseParallel(output_layouts=Shard(0)),
    })
    x = torch.randn(8, 16)
    out = parallel(share(x, rank, world))
    torch.testing.assert_close(out, share(single(x), rank, world))
    out.square().sum().backward()
    single(x).square().sum().backward()
    for ours, wanted in zip(parallel.parameters(), single.parameters()):
        torch.testing.assert_close(ours.grad.full_tensor(), wanted.grad)
    # And a loss over classes of which every rank has some.
    scores, classes = torch.randn(4, 8), torch.arange(4)
    laid = distribute_tensor(scores, mesh, [Shard(1)]).requires_grad_()
    with loss_parallel():
        nn.functional.cross_entropy(laid, classes).backward()
    scores.requires_grad_()
    nn.functional.cross_entropy(scores, classes).backward()
    torch.testing.assert_close(laid.grad.full_tensor(), scores.grad)


@case()
def a_whole_state_from_one_rank(rank, world):
    parallel = sharded(cpu_mesh(world))
    with torch.no_grad():
        for parameter in parallel.parameters():
            parameter.zero_()
    options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
    set_model_state_dict(parallel, model().state_dict() if rank == 0 else {}, options=options)
    same(whole(parallel), model())
    # One that is written while the ranks go on, and asks the others in a group of its own.
    writing = checkpoint.async_save(
        {"state": torch.ones(3), "step": 5}, checkpoint_id="beside",
        process_group=dist.new_group(),
    )
    train(parallel, optimizer(parallel.parameters()), rank, world)
    writing.result()
    loaded = {"state": torch.zeros(3), "step": 0}
    checkpoint.load(loaded, checkpoint_id="beside")
    assert loaded["state"].eq(1).all() and loaded["step"] == 5, loaded
    same(whole(parallel), reference()[1])


@case(quick=True)
def checkpoints(rank, world):
    mesh = cpu_mesh(world)
    parallel = sharded(mesh)
    update = optimizer(parallel.parameters())
    train(parallel, update, rank, world, steps=2)
    parameters, state = get_state_dict(parallel, update)
    checkpoint.save({"model": parameters, "optimizer": state}, checkpoint_id="saved")
    # Into a model that is laid out in another way, and on with it.
    other = model()
    for block in other:
        parallelize_module(block, mesh, PLAN)
    update = optimizer(other.parameters())
    parameters, state = get_state_dict(other, update)
    loaded = {"model": parameters, "optimizer": state}
    checkpoint.load(loaded, checkpoint_id="saved")
    set_state_dict(
        other, update, model_state_dict=loaded["model"], optim_state_dict=loaded["optimizer"]
    )
    same(whole(other), reference(steps=2)[1])
    for step in range(2, 4):
        x, target = batch(step)
        loss(other(x), target).backward()
        update.step()
        update.zero_grad()
    same(whole(other), reference()[1])
