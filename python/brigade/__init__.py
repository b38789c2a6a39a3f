"""Brigade: collectives between processes, on anything that has a buffer.

    import brigade, numpy

    comm = brigade.Communicator.from_env()
    numbers = numpy.full(1000, comm.rank + 1.0)
    comm.all_reduce(numbers)
    print(numbers[0])

Start it with `brigade run -n 4 -- python program.py`, torchrun, mpirun or srun. For torch see
brigade.torch, which init_process_group("brigade") finds by itself.
"""

from .communicator import Communicator, unique_id, version
from .groups import group
from .library import Error
from .work import Work

# What tracebacks call it, as programs do.
Error.__module__ = __name__

# That of libbrigade, with which the package is built.
__version__ = ".".join(map(str, version()))

__all__ = ["Communicator", "Error", "Work", "group", "unique_id", "version"]
