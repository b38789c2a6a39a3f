"""CuPy's own binding of NCCL, on the memory of numpy arrays: every collective that it has. With
MEMORY=device it is on CuPy's arrays, which takes a GPU; all ranks may share one.

Run by one process for each rank (RANK, WORLD_SIZE), with Brigade's library for LD_PRELOAD: packages
beside CuPy may carry another libnccl.so.2, which CuPy looks for itself. The ranks hand the unique
id on through the file named by ID_FILE.
"""

import os
import sys
import time

import numpy
from cupy_backends.cuda.libs import nccl

RANK, RANKS = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
TYPES = {
    "int8": nccl.NCCL_INT8,
    "uint8": nccl.NCCL_UINT8,
    "int32": nccl.NCCL_INT32,
    "uint32": nccl.NCCL_UINT32,
    "int64": nccl.NCCL_INT64,
    "uint64": nccl.NCCL_UINT64,
    "float16": nccl.NCCL_FLOAT16,
    "float32": nccl.NCCL_FLOAT32,
    "float64": nccl.NCCL_FLOAT64,
}
OPERATORS = {
    nccl.NCCL_SUM: lambda parts: sum(parts[1:], parts[0]),
    nccl.NCCL_PROD: lambda parts: numpy.multiply.reduce(parts),
    nccl.NCCL_MAX: lambda parts: numpy.maximum.reduce(parts),
    nccl.NCCL_MIN: lambda parts: numpy.minimum.reduce(parts),
}


if os.environ.get("MEMORY") == "device":
    import cupy

    # A communicator takes the device of the context that there is.
    lend, back = cupy.asarray, cupy.asnumpy
    lend(numpy.zeros(1))

    def at(array):
        """Where it begins."""
        return array.data.ptr

else:

    def lend(array):
        """The array where calls find it."""
        return array

    back = lend

    def at(array):
        """Where it begins."""
        return array.ctypes.data


def shared_id():
    """The id that rank 0 draws."""
    path = os.environ["ID_FILE"]
    if RANK == 0:
        unique_id = nccl.get_unique_id()
        with open(path + ".new", "wb") as file:
            file.write(unique_id)
        os.rename(path + ".new", path)
        return unique_id
    deadline = time.monotonic() + 60
    while not os.path.exists(path):
        if time.monotonic() > deadline:
            sys.exit(f"rank {RANK}: {path} does not come")
        time.sleep(0.01)
    with open(path, "rb") as file:
        return file.read()


def brings(rank, count, dtype):
    """What a rank brings: small numbers, which every type holds and every sum of which is exact."""
    return ((numpy.arange(count) * 7 + rank * 3) % 4 + 1).astype(dtype)


def same(got, wanted, what):
    got = back(got)
    if not numpy.array_equal(got, wanted):
        sys.exit(f"rank {RANK}: {what}: {got[:8]} is not {wanted[:8]}")


def collectives(comm, dtype, number, count):
    """One round of every collective with one type and length."""
    mine = brings(RANK, count, dtype)
    all_parts = [brings(rank, count, dtype) for rank in range(RANKS)]
    where = f"{dtype} x {count}"
    out = lend(numpy.zeros(count, dtype))
    lent = lend(mine)
    for operator, fold in OPERATORS.items():
        wanted = fold(all_parts).astype(dtype)
        comm.allReduce(at(lent), at(out), count, number, operator, 0)
        same(out, wanted, f"allReduce {operator} of {where}")
        out[:] = 0
        comm.reduce(at(lent), at(out), count, number, operator, RANKS - 1, 0)
        same(out, wanted if RANK == RANKS - 1 else 0 * wanted, f"reduce {operator} of {where}")
    comm.broadcast(at(lent), at(out), count, number, 1, 0)
    same(out, all_parts[1], f"broadcast of {where}")
    in_place = lend(mine.copy())
    comm.bcast(at(in_place), count, number, 0, 0)
    same(in_place, all_parts[0], f"bcast of {where}")
    gathered = lend(numpy.zeros(RANKS * count, dtype))
    comm.allGather(at(lent), at(gathered), count, number, 0)
    same(gathered, numpy.concatenate(all_parts), f"allGather of {where}")
    long_parts = [brings(rank, RANKS * count, dtype) for rank in range(RANKS)]
    long_part = lend(long_parts[RANK])
    comm.reduceScatter(at(long_part), at(out), count, number, nccl.NCCL_SUM, 0)
    wanted = sum(long_parts[1:], long_parts[0])[RANK * count : (RANK + 1) * count]
    same(out, wanted.astype(dtype), f"reduceScatter of {where}")
    last, following = (RANK - 1) % RANKS, (RANK + 1) % RANKS
    nccl.groupStart()
    comm.send(at(lent), count, number, following, 0)
    comm.recv(at(out), count, number, last, 0)
    nccl.groupEnd()
    same(out, all_parts[last], f"send and recv of {where}")


def main():
    comm = nccl.NcclCommunicator(RANKS, shared_id(), RANK)
    assert (comm.rank_id(), comm.size()) == (RANK, RANKS)
    for dtype, number in TYPES.items():
        for count in (1, 1000, 100_003):
            collectives(comm, dtype, number, count)
    try:
        comm.allReduce(0, 0, 1, nccl.NCCL_FLOAT32, nccl.NCCL_SUM, 0)
        sys.exit("NULL is no memory, and was taken for some")
    except nccl.NcclError as error:
        assert "INVALID_ARGUMENT" in str(error), error
    comm.check_async_error()
    comm.destroy()
    print(f"rank {RANK} of {RANKS}: all of {nccl.get_version()} as it should be")


main()
