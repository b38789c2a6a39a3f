"""Brigade without torch: every call on two ranks and on one, on NumPy arrays and plain buffers.

    brigade run -n 2 -- python tests/buffers.py
"""

import array
import inspect
import os
import pickle
import signal
import threading
import time

import brigade
import numpy

comm = brigade.Communicator.from_env(timeout_ms=20000)
rank, size = comm.rank, comm.size
ranks = numpy.arange(size)


def refused(function, *arguments, kind=ValueError, **more):
    try:
        function(*arguments, **more)
    except kind as error:
        return str(error)
    raise AssertionError(f"{function.__name__} was not refused")


for dtype in ["i1", "u1", "i2", "i4", "u4", "i8", "u8", "f2", "f4", "f8"]:
    numbers = numpy.arange(10).astype(dtype) + rank
    comm.all_reduce(numbers)
    assert (numbers == (numpy.arange(10) * size + ranks.sum()).astype(dtype)).all(), numbers
flags = numpy.array([True, rank == 0])
comm.all_reduce(flags, "band")
assert flags.tolist() == [True, size == 1]
plain = array.array("d", [rank, 1.0])
comm.all_reduce(plain, "avg")
assert list(plain) == [ranks.mean(), 1.0]
halves = numpy.full(3, 0x3F80, dtype="u2")
comm.all_reduce(halves, dtype="bfloat16")
comm.all_reduce(halves, "max", dtype="bf16")
assert (halves == (numpy.float32(size).view("u4") >> 16)).all()
# Eight bytes to NumPy, and one on the command line.
assert "dtype is 'i8', which is no type" in refused(comm.all_reduce, numpy.ones(2, "i8"), dtype="i8")

mine = numpy.full(4, rank, "f4")
everyone = numpy.empty((size, 4), "f4")
comm.all_gather(mine, everyone)
assert (everyone == ranks[:, None]).all()
part = numpy.empty(4, "f4")
comm.reduce_scatter(everyone, part)
assert (part == rank * size).all()
turned = numpy.empty((size, 4), "f4")
comm.all_to_all(everyone + rank, turned)
assert (turned == (ranks + rank)[:, None]).all()
sent, received = [rank + to for to in range(size)], [rank + r for r in range(size)]
out = numpy.empty(sum(received))
comm.all_to_all(numpy.full(sum(sent), float(rank)), out, sent, received)
assert (out == numpy.repeat(ranks, received)).all()
out[:] = -1
comm.all_to_all(numpy.full(sum(sent), float(rank)), out, numpy.array(sent), tuple(received))
assert (out == numpy.repeat(ranks, received)).all()

for root in range(size):
    told = bytearray([rank + 1] * 3)
    comm.broadcast(told, root)
    assert told == bytearray([root + 1] * 3)
    total = numpy.full(2, rank, "i8")
    comm.reduce(total, root, "max")
    assert rank != root or (total == size - 1).all()
    target = numpy.empty((size, 4), "f4") if rank == root else None
    comm.gather(mine, target, root)
    assert rank != root or (target == ranks[:, None]).all()
    comm.scatter(target, part, root)
    assert (part == rank).all()

works = [comm.all_reduce(numpy.ones(1000), wait=False) for _ in range(20)]
assert all(work.wait(20) and work.done() for work in works)
if size > 1 and rank == 0:
    comm.send(b"hello", 1)
if rank == 1:
    hello = bytearray(5)
    comm.recv(hello, 0)
    assert hello == b"hello"

# Both of two ranks send first, more than any wire holds, and receive behind that; and a collective.
other, ones = rank ^ 1, numpy.ones(3)
if size % 2 == 0:
    theirs, long = numpy.zeros(1 << 24, "u1"), numpy.full(1 << 24, rank + 1, "u1")
    with brigade.group() as made:
        comm.send(long, other)
        assert comm.recv(theirs, other) is None and not theirs.any()
        with brigade.group():
            comm.all_reduce(ones)
    assert made.work is None and (theirs == other + 1).all() and (ones == size).all()
    with brigade.group(wait=False) as made:
        # The group keeps what nobody else does.
        comm.send(long + numpy.uint8(8), other)
        comm.recv(theirs, other)
    assert made.work.wait(20) and made.work.done() and (theirs == other + 9).all()
# Nothing of a group is carried out that an exception leaves, or in which a call was refused.
for wrong, kind in (lambda: comm.all_reduce([1]), TypeError), (lambda: 1 / 0, ZeroDivisionError):
    def left():
        with brigade.group():
            comm.send(ones, rank)
            wrong()

    refused(left, kind=kind)
ones[:] = 7
with brigade.group():
    comm.send(ones, rank)
    comm.recv(theirs := numpy.zeros(3), rank)
assert (theirs == 7).all()


def heedless():
    with brigade.group():
        refused(comm.send, ones, size, kind=brigade.Error)


assert "nothing of the group was carried out: " in refused(heedless, kind=brigade.Error)
with brigade.group():
    assert "brigade.group(wait=False)" in refused(comm.all_reduce, ones, wait=False)


def within():
    with brigade.group(), brigade.group(wait=False):
        pass


assert "only the outermost group has a work" in refused(within, kind=brigade.Error)
with comm.split(rank % 2) as half:
    assert half.size == (size + 1 - rank % 2) // 2
    half.barrier()
assert comm.split(-1) is None
with comm.split(numpy.int32(0), key=-rank) as turned_round:
    assert turned_round.rank == size - 1 - rank
    told = bytearray([rank])
    turned_round.broadcast(told, root=numpy.uint8(size - 1))
    assert told == b"\0"
    if rank == 1:
        # Nothing comes before this rank says, elsewhere, that its wait was cut short.
        work = comm.recv(hello, 0, wait=False)
        signal.signal(signal.SIGALRM, signal.default_int_handler)

        def cut_short():
            signal.setitimer(signal.ITIMER_REAL, 0.05)
            work.wait()

        refused(cut_short, kind=KeyboardInterrupt)
        assert not work.wait(0) and not work.wait(-1) and not work.wait(0.01)
        turned_round.send(b"cut", turned_round.size - 1)
        assert work.wait() and hello == b"again"
    if size > 1 and rank == 0:
        turned_round.recv(bytearray(3), turned_round.size - 2)
        comm.send(b"again", 1)

frozen = numpy.ones(4, "f4")
frozen.flags.writeable = False
for thing in b"read only", memoryview(b"read only"), frozen:
    said = refused(comm.all_reduce, thing)
    assert said.startswith("buffer is read-only, and the call writes to it"), said
    said = refused(comm.all_gather, mine, thing)
    assert said.startswith("target is read-only, and the call writes to it"), said
for thing in numpy.ones((4, 4))[:, 0], memoryview(bytearray(8))[::2]:
    said = refused(comm.all_to_all, thing, mine)
    assert said.startswith("source is not C-contiguous"), said
for thing in None, 3, [1.0], "text":
    said = refused(comm.all_reduce, thing, kind=TypeError)
    assert said.startswith("buffer has to be something with a buffer, and is of type "), said
assert "does not give its buffer" in refused(comm.all_reduce, numpy.ones(2, "M8[s]"))
assert "is no type here" in refused(comm.all_reduce, numpy.ones(2, "c8"))
said = refused(comm.all_reduce, numbers, dtype=["f4"])
assert said.startswith("dtype is ['f4'], which is no type here; dtype= names one of: int8,"), said
said = refused(comm.all_reduce, numbers, "add")
assert said.startswith("op is 'add', which is no operator here; these are: sum, prod,"), said
assert "these are: sum, prod," in refused(comm.all_reduce, numbers, ["sum"])
objects = numpy.array([(None, 1.0)], [("one", "O"), ("Other", "f8")])
for thing in objects, objects["one"].copy():
    assert "references to" in refused(comm.broadcast, thing, dtype="uint8")
comm.all_reduce(objects["Other"].copy().view([("Other", "f8")]), dtype="float64")
times = f"({size} rank{'s'[size < 2:]} x 4 of "
odd = numpy.empty(4 * size + 3, "f4")
for call, more in (comm.all_gather, []), (comm.gather, [rank]):
    said = refused(call, mine, odd, *more)
    wanted = f"target has {4 * size + 3} elements, and has to have {4 * size} {times}source)"
    assert said == wanted, said
for call, more in (comm.reduce_scatter, []), (comm.scatter, [rank]):
    said = refused(call, odd, mine, *more)
    wanted = f"source has {4 * size + 3} elements, and has to have {4 * size} {times}target)"
    assert said == wanted, said
said = refused(comm.all_to_all, odd, mine)
assert said == f"target has 4 elements, and has to have {4 * size + 3}, as source has", said
said = refused(comm.all_gather, mine, numpy.empty(4 * size))
assert said == (
    "source has elements of type float32 and target of type float64: both have to be of one type"
), said
assert "received is [9" in refused(comm.all_to_all, out, out, received, [9] * size)
odd = numpy.ones(size + 1, "f4")
if size > 1:
    said = refused(comm.all_to_all, odd, odd.copy())
    wanted = f"source has {size + 1} elements, which are no equal parts for {size} ranks"
    assert said == wanted, said
wide, narrow = numpy.ones(size), numpy.ones(size, "f4")
counts = [1] * size
assert "both have to be of one type" in refused(comm.all_to_all, wide, narrow, counts, counts)
assert "both have to be of one type" in refused(comm.scatter, narrow, wide[:1], rank)
assert "without `received`" in refused(comm.all_to_all, out, out, sent)
assert "without `sent`" in refused(comm.all_to_all, out, out, None, sent)

numbered = [
    (comm.broadcast, [mine], "root"), (comm.reduce, [mine], "root"),
    (comm.gather, [mine, None], "root"), (comm.scatter, [None, mine], "root"),
    (comm.send, [mine], "peer"), (comm.recv, [mine], "peer"), (comm.split, [], "color"),
    (comm.split, [0], "key"), (brigade.Communicator.from_id, [bytes(128)], "rank"),
    (brigade.Communicator.from_id, [bytes(128), 0], "size"),
]
for function, arguments, name in numbered:
    rest = [0] if (function, name) == (brigade.Communicator.from_id, "rank") else []
    for wrong in 1.0, "0", None, [0], numpy.float64(0):
        said = refused(function, *arguments, wrong, *rest, kind=TypeError)
        assert said.startswith(f"{name} has to be a whole number, and is of type "), said
    said = refused(function, *arguments, 2**32, *rest, kind=brigade.Error)
    assert said == f"{name} 4294967296 is more than C can count to", said
said = refused(comm.all_to_all, out, out, [1.0] * size, received, kind=TypeError)
assert said == "a count of sent has to be a whole number, and is of type float", said
said = refused(comm.all_to_all, out, out, 4, 4, kind=TypeError)
assert said == "sent has to be a list of counts, one for each rank, and is of type int", said
said = refused(comm.shrink, 1, kind=TypeError)
assert said == "excluded has to be a list of ranks, and is of type int", said
said = refused(comm.all_reduce(numpy.ones(3), wait=False).wait, "x", kind=TypeError)
assert said == "timeout has to be a number of seconds or None, and is of type str", said
assert comm.all_reduce(numpy.ones(3), wait=False).wait(numpy.float32(20))
said = refused(brigade.Communicator.from_id, 5, 0, 2, kind=TypeError)
assert said == "unique has to be bytes, and is of type int", said
said = refused(comm.abort, 5, kind=TypeError)
assert said == "reason has to be a str, and is of type int", said
assert f": root -1 of {size} ranks" in refused(comm.broadcast, mine, -1, kind=brigade.Error)
assert f": rank -1 of {size} ranks" in refused(comm.send, mine, -1, kind=brigade.Error)
for wrong in b"short", bytes(129):
    said = refused(brigade.Communicator.from_id, wrong, 0, 2)
    assert said == f"unique has {len(wrong)} bytes, and a unique id 128", said
for kept in comm, comm.all_reduce(mine, wait=False):
    assert "of its process" in refused(pickle.dumps, kept, kind=TypeError)
said = refused(comm.barrier, until=3, kind=TypeError)
assert said.endswith("barrier() got an unexpected keyword argument 'until'"), said
for name, call in vars(brigade.Communicator).items():
    # What help() shows; settings are for those that join.
    assert not inspect.isfunction(call) or "**" not in str(inspect.signature(call)), name
assert str(inspect.signature(comm.all_reduce)) == "(buffer, op='sum', *, dtype=None, wait=True)"
assert repr(comm) == f"<brigade.Communicator: rank {rank} of {size}>"
error = pickle.loads(pickle.dumps(brigade.Error(4, "a sentence")))
assert error.result == 4 and str(error) == "a sentence"
assert comm.stats()["calls"] > 30
told = comm.describe().splitlines()
assert told[0] == f"rank {rank} of {size}, on node 0 of 1", told
assert (len(told) > 5 and any(": to " in line for line in told)) == (size > 1), told
assert len(brigade.unique_id()) == 128 and brigade.version() >= (0, 1, 0)
assert brigade.__version__ == "{}.{}.{}".format(*brigade.version())
comm.barrier()

# The last rank goes, and comes again as a newcomer.
shared = numpy.zeros(128, "u1")
if rank == 0:
    shared[:] = numpy.frombuffer(brigade.unique_id(), "u1")
comm.broadcast(shared)
if size > 1:
    if rank == size - 1:
        whole = brigade.Communicator.from_id(shared, rank, size)
    else:
        with comm.shrink([size - 1]) as rest:
            assert rest.size == size - 1
            assert "0 ranks, but there are" in refused(rest.grow, 0, kind=brigade.Error)
            assert "unique has 3 bytes" in refused(rest.grow, size, b"abc")
            whole = rest.grow(size, shared if rank == 0 else None)
    assert (whole.rank, whole.size) == (rank, size)
    whole.all_reduce(ones := numpy.ones(1))
    assert ones[0] == size
    whole.close()
assert "excludes itself" in refused(comm.shrink, [rank], kind=brigade.Error)


def interrupted(function, *arguments, **more):
    """What a handler's KeyboardInterrupt came from, which is heard long before the call would end."""
    signal.signal(signal.SIGALRM, signal.default_int_handler)
    signal.setitimer(signal.ITIMER_REAL, 0.2)
    start = time.monotonic()
    try:
        function(*arguments, **more)
    except KeyboardInterrupt as error:
        assert time.monotonic() - start < 10
        return error.__cause__
    raise AssertionError(f"{function.__name__} heard no signal")


if size > 1:
    # An exception waits for no call on its way, and the others hear of it.
    unique = bytearray(brigade.unique_id())
    comm.broadcast(unique, 0)
    start = time.monotonic()
    try:
        with brigade.Communicator.from_id(unique, rank, size) as other:
            if rank == 0:
                late = other.recv(bytearray(1), 1, wait=False)
                raise KeyError("in the middle")
            # Not in a collective: that rank 0 receives meanwhile may be noticed before it raises.
            told = str(refused(other.recv, bytearray(1), 0, kind=brigade.Error))
            assert "rank 0 aborted: KeyError: 'in the middle'" in told, told
    except KeyError:
        assert rank == 0
    assert time.monotonic() - start < 20
    # Also one that comes between two calls; that of a part of them is its own.
    unique = bytearray(brigade.unique_id())
    comm.broadcast(unique, 0)
    try:
        with brigade.Communicator.from_id(unique, rank, size) as other:
            try:
                with other.split(0):
                    raise LookupError("a batch was empty")
            except LookupError:
                other.barrier()
            if rank == 0:
                raise RuntimeError("the loss is not a number")
            told = str(refused(other.barrier, kind=brigade.Error))
            assert "rank 0 aborted: RuntimeError: the loss is not a number" in told, told
    except RuntimeError:
        assert rank == 0
    comm.barrier()
if rank == 0:
    # Others join for longer than this takes, and nobody comes.
    assert interrupted(brigade.Communicator.from_id, brigade.unique_id(), 0, 2) is None
    with brigade.Communicator.from_id(brigade.unique_id(), 0, 1) as alone:
        assert interrupted(alone.grow, 2, brigade.unique_id()) is None
if size > 1:
    heard = []
    if rank == 0:
        def handler(*_):
            heard.append(refused(comm.barrier, kind=brigade.Error))

        signal.signal(signal.SIGUSR1, handler)
        threading.Timer(0.1, os.kill, [os.getpid(), signal.SIGUSR1]).start()
        cause = interrupted(comm.barrier)
        # The handler that raises nothing ran, and the call went on.
        assert len(heard) == 1 and "runs inside a call" in heard[0], heard
    else:
        time.sleep(1)
        cause = AssertionError()
        try:
            comm.barrier()
        except brigade.Error as error:
            cause = error
    assert cause.result == 11 and "rank 0 aborted: interrupted during barrier" in str(cause), cause
comm.close()
assert "has been closed" in refused(comm.barrier, kind=brigade.Error)
print(f"rank {rank} of {size}: all is well")
