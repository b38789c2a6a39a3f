"""The same scripts over gloo and over brigade, in the same processes: the losses must be the same.

Two ranks add two numbers, whose sum has no order, so there the losses are equal to the last bit.
"""

import datetime
import os

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as checkpoint
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.distributed.tensor.parallel import parallelize_module
from torch.nn.parallel import DistributedDataParallel as DDP

from .case import case
from .sharded import PLAN, cpu_mesh, sharded
from .training import batch, loss, model, optimizer, train


def beside(script, rank, world):
    """Run a script over both, and compare what it returns."""
    seconds = datetime.timedelta(seconds=60)
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    store = dist.TCPStore(address, port, world, rank == 0, seconds)
    found = {}
    for backend in ["gloo", "brigade"]:
        apart = dist.PrefixStore(backend, store)
        dist.init_process_group(
            backend, store=apart, rank=rank, world_size=world, timeout=seconds
        )
        torch.manual_seed(1234)
        found[backend] = torch.tensor(script(rank, world))
        assert len(found[backend]) > 0 and torch.isfinite(found[backend]).all()
        dist.barrier()
        dist.destroy_process_group()
    if world == 2:
        assert torch.equal(found["brigade"], found["gloo"]), found
    torch.testing.assert_close(found["brigade"], found["gloo"], rtol=1e-5, atol=1e-7)
    # Rank 0 serves the store.
    store.add("ended", 1)
    while rank == 0 and store.add("ended", 0) < world:
        pass


def compared(script):
    """A case of a script."""

    def run(_backend, rank, world):
        beside(script, rank, world)

    run.__module__, run.__name__ = script.__module__, script.__name__
    case(quick=True, bare=True, is_program=False, backends=("brigade",))(run)
    return script


@compared
def ddp(rank, world):
    parallel = DDP(model(), bucket_cap_mb=0.002)
    return train(parallel, optimizer(parallel.parameters()), rank, world, steps=10)


@compared
def fsdp2(rank, world):
    parallel = sharded(cpu_mesh(world))
    update = torch.optim.AdamW(parallel.parameters(), lr=0.01)
    return train(parallel, update, rank, world, steps=10)


@compared
def pipeline_1f1b(rank, world):
    stage = PipelineStage(model(blocks=world)[rank], rank, world, torch.device("cpu"))
    schedule = Schedule1F1B(stage, 8, loss_fn=loss)
    update = optimizer(stage.submod.parameters())
    told = []
    for step in range(6):
        (x, target), losses = batch(step), []
        arguments = (x,) if rank == 0 else ()
        more = {"target": target, "losses": losses} if rank == world - 1 else {}
        schedule.step(*arguments, **more)
        update.step()
        update.zero_grad()
        # Ranks without a loss tell how long their gradients' path has made their weights.
        weights = nn.utils.parameters_to_vector(stage.submod.parameters())
        told.append(torch.stack(losses).mean().item() if losses else weights.norm().item())
    return told


@compared
def tensor_parallel(rank, world):
    parallel = model()
    for block in parallel:
        parallelize_module(block, cpu_mesh(world), PLAN)
    return train(parallel, optimizer(parallel.parameters()), 0, 1, steps=10)


@compared
def checkpoint_and_on(rank, world):
    parallel = sharded(cpu_mesh(world))
    update = optimizer(parallel.parameters())
    losses = train(parallel, update, rank, world, steps=3)
    parameters, state = get_state_dict(parallel, update)
    folder = f"saved-{dist.get_backend()}"
    checkpoint.save({"model": parameters, "optimizer": state}, checkpoint_id=folder)
    other = sharded(cpu_mesh(world))
    update = optimizer(other.parameters())
    parameters, state = get_state_dict(other, update)
    loaded = {"model": parameters, "optimizer": state}
    checkpoint.load(loaded, checkpoint_id=folder)
    set_state_dict(
        other, update, model_state_dict=loaded["model"], optim_state_dict=loaded["optimizer"]
    )
    return losses + train(other, update, rank, world, steps=3)
