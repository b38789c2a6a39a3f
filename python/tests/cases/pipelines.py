"""Pipelines: every rank has some of the layers."""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import (
    PipelineStage, Schedule1F1B, ScheduleGPipe, ScheduleInterleaved1F1B,
    ScheduleInterleavedZeroBubble, ScheduleZBVZeroBubble,
)

from .case import case
from .training import batch, loss, model, optimizer, reference

MICROBATCHES = 8


def run(rank, world, schedule_class, stages_each, place):
    """Train, and compare losses and parameters with those of one process."""
    blocks = world * stages_each
    layers = list(model(blocks=blocks))
    mine = place(rank, world)
    stages = [
        PipelineStage(nn.Sequential(layers[at]), at, blocks, torch.device("cpu")) for at in mine
    ]
    is_single = stages_each == 1
    schedule = schedule_class(stages[0] if is_single else stages, MICROBATCHES, loss_fn=loss)
    update = optimizer([p for stage in stages for p in stage.submod.parameters()])
    wanted, single = reference(steps=3, blocks=blocks)
    for step in range(3):
        x, target = batch(step)
        losses = []
        arguments = (x,) if 0 in mine else ()
        if blocks - 1 in mine:
            schedule.step(*arguments, target=target, losses=losses)
            found = torch.stack(losses).mean().item()
            assert abs(found - wanted[step]) < 1e-4, (found, wanted[step])
        else:
            schedule.step(*arguments)
        update.step()
        update.zero_grad()
    for at, stage in zip(mine, stages):
        for ours, theirs in zip(stage.submod.parameters(), single[at].parameters()):
            torch.testing.assert_close(ours.detach(), theirs.detach(), rtol=1e-4, atol=1e-5)


def one(rank, world):
    return [rank]


def looped(rank, world):
    return [rank, rank + world]


def folded(rank, world):
    return [rank, 2 * world - 1 - rank]


@case()
def gpipe(rank, world):
    run(rank, world, ScheduleGPipe, 1, one)


@case(quick=True)
def one_forward_one_backward(rank, world):
    run(rank, world, Schedule1F1B, 1, one)


@case()
def interleaved(rank, world):
    run(rank, world, ScheduleInterleaved1F1B, 2, looped)


@case()
def interleaved_zero_bubble(rank, world):
    run(rank, world, ScheduleInterleavedZeroBubble, 2, looped)


@case()
def zero_bubble_in_a_v(rank, world):
    run(rank, world, ScheduleZBVZeroBubble, 2, folded)


@case()
def beside_data_parallelism(rank, world):
    # Messages and collectives of one world, at the same time.
    work = dist.all_reduce(torch.ones(200_000), async_op=True)
    run(rank, world, Schedule1F1B, 1, one)
    work.wait()
