"""What a case is."""

import dataclasses
import datetime
import os
from collections.abc import Callable

import torch.distributed as dist

CASES = []
# For the others, whatever the timeout of the store is.
LONG = datetime.timedelta(seconds=60)


@dataclasses.dataclass
class Case:
    """One function, with what it needs."""

    name: str
    function: Callable
    worlds: tuple = (2, 4)
    backends: tuple = ("brigade", "gloo")
    quick: bool = False
    seconds: float = 90
    # Wrong there, and known to be.
    gloo_fails: bool = False
    # Beyond what the backend in Python can do.
    needs_native: bool = False
    environment: dict = dataclasses.field(default_factory=dict)
    # Ranks that have the backend in Python, whatever the others have.
    in_python: tuple = ()
    # The function makes and ends groups itself.
    bare: bool = False
    # Its ranks end as programs do, with all of their interpreter; None where it is bare.
    is_program: bool | None = None
    # Exit statuses of ranks that end otherwise.
    ends: dict = dataclasses.field(default_factory=dict)

    def __post_init__(self):
        if self.is_program is None:
            self.is_program = self.bare

    def statuses(self, world):
        """How the ranks should end."""
        return [self.ends.get(rank, 0) for rank in range(world)]

    def run(self, backend, rank, world):
        """Be one rank."""
        if self.bare:
            self.function(backend, rank, world)
            return
        begin(backend)
        self.function(rank, world)
        dist.barrier()
        dist.destroy_process_group()


def begin(backend, seconds=60):
    """The default group."""
    dist.init_process_group(backend, timeout=datetime.timedelta(seconds=seconds))


def case(**more):
    """Make a case of a function, named after its file and itself."""

    def add(function):
        room = function.__module__.rsplit(".", 1)[-1]
        CASES.append(Case(f"{room}.{function.__name__}", function, **more))
        return function

    return add


def refused(function, *arguments, kind=Exception, **more):
    """The error that a call ends with; an AssertionError if it does not."""
    try:
        function(*arguments, **more)
    except kind as error:
        return error
    raise AssertionError(f"{function.__name__} was not refused")


def barrier_before_the_end_of(victim, rank, world):
    """A barrier that `victim` leaves last. Whoever was still in it when that ends would be told so
    there: all that a rank waits for ends with its world.
    """
    dist.barrier()
    store = dist.distributed_c10d._get_default_store()
    if rank == victim:
        store.wait([f"met/{other}" for other in range(world) if other != rank], LONG)
    else:
        store.set(f"met/{rank}", "1")


def end_with_the_others(rank, ranks):
    """End this process when all of `ranks` want to; the first one, in which the store is, last."""
    store = dist.distributed_c10d._get_default_store()
    store.set(f"ends/{rank}", "1")
    store.wait([f"ends/{other}" for other in ranks], LONG)
    store.set(f"gone/{rank}", "1")
    if rank == 0:
        store.wait([f"gone/{other}" for other in ranks], LONG)
    os._exit(0)
