"""torch.distributed over Brigade: init_process_group("brigade").

torch finds `register` by itself, through the entry points of installed packages.
"""

import functools
import importlib
import os
import sys
import warnings
from pathlib import Path

import torch
import torch.distributed

from brigade import malloc
from brigade.ends import Ends


def register():
    """Make "brigade" a backend of torch.distributed, for tensors of the CPU."""
    backend = find()
    ends = Ends(backend)

    def create(group, _options):
        ends.note()
        # Only where somebody trains with it: an import of torch changes nothing.
        malloc.keep_freed()
        # The ranks of the default group that are in this one; none for the default group.
        ranks = list(group.global_ranks_in_group)
        return backend.create(
            group.store, group.group_rank, group.group_size, group.timeout, ranks
        )

    torch.distributed.Backend.register_backend(
        "brigade", create, extended_api=True, devices="cpu"
    )
    name_shrunken_groups()


def name_shrunken_groups():
    """torch notes every shrunken group on the CPU as gloo's, and DDP's logger then reads a field of
    gloo's in a backend that is none. What is made of ours is noted as ours.
    """
    c10d = torch.distributed.distributed_c10d
    make = getattr(c10d, "_create_shrunk_process_group", None)
    if make is None:
        return

    @functools.wraps(make)
    def made(backend, *more):
        group = make(backend, *more)
        if backend.name() == "brigade":
            kind = torch.distributed.ProcessGroup.BackendType.CUSTOM
            group._register_backend(torch.device("cpu"), kind, backend)
            group._set_default_backend(kind)
        return group

    c10d._create_shrunk_process_group = made


def find():
    """The backend in C++ for this torch; the one in Python where there is none."""
    if os.environ.get("TORCH_BRIGADE_BACKEND") == "python":
        return importlib.import_module("brigade.fallback")
    wanted = "_torch_{}_{}".format(*torch.__version__.split(".")[:2])
    try:
        return importlib.import_module(f"brigade.{wanted}")
    except ImportError as error:
        there = sorted(path.name for path in Path(__file__).parent.glob("_torch_*.so"))
        torch_is = f"for torch {torch.__version__}"
        lacks = f"has no backend in C++ {torch_is}; it has {', '.join(there) or 'none at all'}"
        if any(name.startswith(f"{wanted}.") for name in there):
            lacks = f"has a backend in C++ {torch_is} that does not load: {error}"
        warnings.warn(
            f"this build of brigade {lacks}. The one in Python is slower and cannot do all. "
            "Install brigade again where this torch can be imported: pip install "
            "--no-build-isolation",
            stacklevel=2,
        )
        return importlib.import_module("brigade.fallback")
