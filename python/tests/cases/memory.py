"""What malloc does with the memory of the last step."""

import resource

import torch

from .case import case

# As many as gradients of a small model, each of a size that malloc takes from its heap in time.
BLOCKS, BLOCK_BYTES = 16, 4 << 20
PAGES = BLOCKS * BLOCK_BYTES // 4096


def faults_of_a_step():
    """Page faults where so much is allocated and freed that was allocated and freed before."""
    for _ in range(3):
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        held = [torch.ones(BLOCK_BYTES // 4) for _ in range(BLOCKS)]
        del held
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


@case(quick=True, worlds=(2,), backends=("brigade",))
def what_is_freed_stays(rank, world):
    faults = faults_of_a_step()
    assert faults < PAGES / 10, f"{faults} page faults for {PAGES} pages"


def goes(rank, world):
    faults = faults_of_a_step()
    assert faults > PAGES / 2, f"{faults} page faults for {PAGES} pages"


@case(worlds=(2,), backends=("brigade",), environment={"TORCH_BRIGADE_KEEP_MEMORY": "0"})
def what_is_freed_goes_where_asked(rank, world):
    goes(rank, world)


@case(worlds=(2,), backends=("brigade",), environment={"MALLOC_TRIM_THRESHOLD_": "131072"})
def what_is_freed_goes_as_users_chose(rank, world):
    goes(rank, world)
