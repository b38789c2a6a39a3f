"""libbrigade through ctypes: its functions, its errors, and buffers as it wants them."""

import ctypes
import re
from ctypes import POINTER, byref, c_char_p, c_int, c_size_t, c_ssize_t, c_uint64, c_void_p
from ctypes import py_object
from operator import index
from pathlib import Path

SUCCESS, INVALID_ARGUMENT, PEER_LOST, IN_PROGRESS, TIMEOUT, PEER_LEFT = 0, 4, 6, 7, 8, 9
OPS = {"sum": 0, "prod": 1, "max": 2, "min": 3, "avg": 4, "band": 5, "bor": 6, "bxor": 7}
# Types by name, and by the letter that buffers use; those without a letter are named by callers.
DTYPES = {
    "int8": 0, "uint8": 1, "int32": 2, "uint32": 3, "int64": 4, "uint64": 5, "float16": 6,
    "float32": 7, "float64": 8, "bfloat16": 9, "float8e4m3": 10, "float8e5m2": 11, "int16": 12,
    "bool": 13,
}
# The command's names of the same types, such as bf16; not i8 and u8, which are eight bytes long to
# NumPy.
SHORT = {
    name.replace("uint", "u").replace("int", "i").replace("float", "f"): name
    for name in DTYPES
    if name not in ("int8", "uint8")
}
LETTERS = {
    "b": "int8", "B": "uint8", "h": "int16", "i": "int32", "I": "uint32", "l": "int64",
    "L": "uint64", "q": "int64", "Q": "uint64", "e": "float16", "f": "float32", "d": "float64",
    "?": "bool", "c": "uint8",
}
# What formats call the members of structs; the rest are types.
NAMES = re.compile(":[^:]*:")


class Error(Exception):
    """What a call failed with: `result` is its number in brigade.h."""

    def __init__(self, result, sentence):
        super().__init__(sentence)
        self.result = result

    def __reduce__(self):
        # Pools of processes bring exceptions home pickled, and hang on one that cannot be.
        return type(self), (self.result, str(self))


class Id(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_uint8 * 128)]


class Setting(ctypes.Structure):
    _fields_ = [("name", c_char_p), ("value", c_char_p)]


class Config(ctypes.Structure):
    _fields_ = [
        ("struct_size", c_size_t), ("settings", POINTER(Setting)), ("setting_count", c_size_t)
    ]


class Stats(ctypes.Structure):
    _fields_ = [("struct_size", c_size_t), ("sent_bytes", c_uint64), ("calls", c_uint64)]


NAME = "libbrigade.so.0"


def find():
    """The library beside this file; the one that the system finds, where there is none."""
    beside = Path(__file__).with_name(NAME)
    here = beside.exists()
    try:
        return ctypes.CDLL(str(beside) if here else NAME)
    except OSError as error:
        looked = f"{beside} is damaged or of another system" if here else (
            f"there is no {beside}, and no {NAME} where the system looks (LD_LIBRARY_PATH, then "
            "what ldconfig lists)"
        )
        raise ImportError(
            f"libbrigade cannot be loaded: {looked}: {error}. Installing the package brings it "
            "(pip install --no-build-isolation ./python); so does ffi/install.sh --prefix DIR, "
            "with LD_LIBRARY_PATH=DIR/lib",
            name="brigade", path=str(beside),
        ) from error


def load():
    """The library with the types of its functions."""
    library = find()
    library.brigade_last_error.restype = c_char_p
    library.brigade_error_string.restype = c_char_p
    library.brigade_dtype_size.restype = c_size_t
    memory, comm, work, counts = c_void_p, c_void_p, c_void_p, POINTER(c_size_t)
    ends = [comm, work]
    one = [memory, c_size_t, c_int]
    two = [memory, memory, c_size_t, c_int]
    prototypes = {
        "error_string": [c_int],
        "get_unique_id": [POINTER(Id)],
        "comm_init_rank_config": [c_void_p, c_int, Id, c_int, POINTER(Config)],
        "comm_init_from_env": [c_void_p, POINTER(Config)],
        "interrupt_by": [c_void_p, c_void_p],
        "comm_split": [comm, c_int, c_int, c_void_p],
        "comm_shrink": [comm, POINTER(c_int), c_size_t, c_void_p, POINTER(Config)],
        "comm_grow": [comm, c_int, POINTER(Id), c_void_p, POINTER(Config)],
        "comm_abort": [comm, c_char_p],
        "comm_destroy": [comm],
        "comm_rank": [comm, POINTER(c_int)],
        "comm_size": [comm, POINTER(c_int)],
        "comm_stats": [comm, POINTER(Stats)],
        "comm_describe": [comm, c_char_p, c_size_t],
        "comm_get_async_error": [comm, POINTER(c_int)],
        "comm_get_rank_error": [comm, c_int, POINTER(c_int)],
        "group_start": [],
        "group_end": [c_void_p],
        "group_cancel": [],
        "work_test": [work],
        "work_wait": [work, ctypes.c_int64],
        "work_free": [work],
        "all_reduce": two + [c_uint64] + ends,
        "reduce_scatter": two + [c_uint64] + ends,
        "all_gather": two + ends,
        "reduce_scatter_v": [memory, memory, counts, c_int, c_uint64] + ends,
        "all_gather_v": [memory, memory, counts, c_int] + ends,
        "gather_v": [memory, memory, counts, c_int, c_int] + ends,
        "scatter_v": [memory, memory, counts, c_int, c_int] + ends,
        "all_to_all": two + ends,
        "all_to_all_v": [memory, counts, memory, counts, c_int] + ends,
        "barrier": ends,
        "broadcast": two + [c_int] + ends,
        "reduce": two + [c_uint64, c_int] + ends,
        "gather": two + [c_int] + ends,
        "scatter": two + [c_int] + ends,
        "send": one + [c_int] + ends,
        "recv": one + [c_int] + ends,
    }
    for name, arguments in prototypes.items():
        if not hasattr(library, "brigade_" + name):
            raise ImportError(
                f"{library._name} has no brigade_{name}: it is of another version than this "
                "package; install both anew", name="brigade", path=library._name,
            )
        getattr(library, "brigade_" + name).argtypes = arguments
    return library


LIBRARY = load()


def last_error():
    """The sentence of this thread's last failure."""
    return LIBRARY.brigade_last_error().decode()


def check(result):
    """Raise what a call failed with."""
    if result != SUCCESS:
        raise Error(result, last_error())


def whole(number, argument):
    """A whole number of whatever type: Python's, NumPy's, all that can be an index."""
    try:
        return index(number)
    except TypeError:
        kind = type(number).__name__
        raise TypeError(f"{argument} has to be a whole number, and is of type {kind}") from None


def several(things, argument, what):
    """A list of whatever can be gone through."""
    try:
        return list(things)
    except TypeError:
        kind = type(things).__name__
        raise TypeError(f"{argument} has to be a list of {what}, and is of type {kind}") from None


def small(number, argument):
    """A whole number as C has it in an int: ctypes would cut off what is more."""
    number = whole(number, argument)
    if not -2**31 <= number < 2**31:
        raise Error(INVALID_ARGUMENT, f"{argument} {number} is more than C can count to")
    return number


def operator(name):
    """The number of an operator."""
    if not isinstance(name, str) or name not in OPS:
        raise ValueError(f"op is {name!r}, which is no operator here; these are: {', '.join(OPS)}")
    return OPS[name]


class PyBuffer(ctypes.Structure):
    """Python's Py_buffer."""

    _fields_ = [
        ("buf", c_void_p), ("obj", py_object), ("len", c_ssize_t), ("itemsize", c_ssize_t),
        ("readonly", c_int), ("ndim", c_int), ("format", c_char_p), ("shape", c_void_p),
        ("strides", c_void_p), ("suboffsets", c_void_p), ("internal", c_void_p),
    ]


GET, RELEASE = ctypes.pythonapi.PyObject_GetBuffer, ctypes.pythonapi.PyBuffer_Release
GET.argtypes, GET.restype = [py_object, POINTER(PyBuffer), c_int], c_int
RELEASE.argtypes, RELEASE.restype = [POINTER(PyBuffer)], None
WRITABLE, FORMAT, C_CONTIGUOUS = 0x1, 0x4, 0x38


def refusal(thing, argument, writable, error):
    """What to raise for an argument whose buffer could not be had, which gave this error."""
    kind = type(thing).__name__
    try:
        with memoryview(thing) as view:
            readonly, contiguous = view.readonly, view.c_contiguous
    except TypeError:
        hint = "; its numpy() has one" if hasattr(thing, "numpy") else ""
        return TypeError(
            f"{argument} has to be something with a buffer, and is of type {kind}{hint}"
        )
    except (BufferError, ValueError):
        # Its elements are of a type that buffers do not have, or it has steps that they cannot say.
        return ValueError(f"{argument}, of type {kind}, does not give its buffer: {error}")
    if writable and readonly:
        return ValueError(f"{argument} is read-only, and the call writes to it (type {kind})")
    if not contiguous:
        return ValueError(f"{argument} is not C-contiguous; a copy would be (type {kind})")
    return ValueError(f"{argument}, of type {kind}, does not give its buffer: {error}")


class Span:
    """The memory of an object with a buffer. It stays where it is while the span lives.

    What is wrong with a value is a ValueError that names the argument, as NumPy's for its `out`; what
    has no buffer is a TypeError.
    """

    def __init__(self, thing, dtype=None, writable=False, argument="buffer"):
        self.held = None
        view = PyBuffer()
        try:
            GET(thing, byref(view), FORMAT | C_CONTIGUOUS | (WRITABLE if writable else 0))
        except (BufferError, TypeError, ValueError) as error:
            raise refusal(thing, argument, writable, error) from None
        self.held = view
        letter = (view.format or b"B").decode().lstrip("@=<")
        name = dtype or LETTERS.get(letter)
        if "O" in NAMES.sub("", letter):
            # No dtype= makes elements of what another process knows nothing of.
            raise ValueError(f"{argument} holds references to Python's objects")
        name = SHORT.get(name, name) if isinstance(name, str) else name
        if not isinstance(name, str) or name not in DTYPES:
            wrong = f"dtype is {dtype!r}" if dtype else f"{argument} has elements of {letter!r}"
            raise ValueError(
                f"{wrong}, which is no type here; dtype= names one of: {', '.join(DTYPES)}; "
                "or in short, as bf16 and f32"
            )
        size = LIBRARY.brigade_dtype_size(DTYPES[name])
        if view.len % size or (dtype is None and view.itemsize != size):
            raise ValueError(
                f"{argument} has {view.len} bytes in items of {view.itemsize}, which are no {name}"
            )
        self.dtype, self.address, self.count = DTYPES[name], view.buf, view.len // size
        self.type_name = name

    def __del__(self):
        if self.held is not None:
            RELEASE(byref(self.held))
