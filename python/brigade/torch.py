"""torch.distributed over Brigade: init_process_group("brigade").

torch finds `register` by itself, through the entry points of installed packages.
"""

import atexit
import importlib
from pathlib import Path

import torch
import torch.distributed


def register():
    """Make "brigade" a backend of torch.distributed, for tensors of the CPU."""
    wanted = "_torch_{}_{}".format(*torch.__version__.split(".")[:2])
    try:
        native = importlib.import_module(f"brigade.{wanted}")
    except ModuleNotFoundError as error:
        there = sorted(path.name for path in Path(__file__).parent.glob("_torch_*.so"))
        raise ImportError(
            f"this build of brigade has no backend for torch {torch.__version__}; it has "
            f"{', '.join(there) or 'none at all'}. Install it again where this torch can be "
            "imported: pip install --no-build-isolation"
        ) from error
    torch.distributed.Backend.register_backend("brigade", native.create, devices="cpu")
    # Threads that still run callbacks when the interpreter goes would abort the process.
    atexit.register(native.end_all)
