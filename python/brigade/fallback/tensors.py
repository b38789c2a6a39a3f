"""Tensors as brigade.h wants them: one run of elements of a type that it knows."""

import torch
from torch.distributed import ReduceOp

from ..library import DTYPES, OPS

TYPES = {
    torch.int8: "int8", torch.uint8: "uint8", torch.int16: "int16", torch.int32: "int32",
    torch.int64: "int64", torch.uint32: "uint32", torch.uint64: "uint64",
    torch.float16: "float16", torch.bfloat16: "bfloat16", torch.float32: "float32",
    torch.float64: "float64", torch.float8_e4m3fn: "float8e4m3", torch.float8_e5m2: "float8e5m2",
    torch.bool: "bool",
}
# Complex numbers are two real ones, which is right for sums only.
PAIRS = {
    torch.complex32: "float16", torch.complex64: "float32", torch.complex128: "float64",
}
REDUCTIONS = {
    ReduceOp.SUM: "sum", ReduceOp.AVG: "avg", ReduceOp.PRODUCT: "prod", ReduceOp.MIN: "min",
    ReduceOp.MAX: "max", ReduceOp.BAND: "band", ReduceOp.BOR: "bor", ReduceOp.BXOR: "bxor",
}


def element(dtype):
    """The number of a type in brigade.h, and how many of its elements make one of torch's."""
    if dtype in PAIRS:
        return DTYPES[PAIRS[dtype]], 2
    if dtype in TYPES:
        return DTYPES[TYPES[dtype]], 1
    return DTYPES["uint8"], dtype.itemsize


def reduction(op, dtype):
    """The number of an operator in brigade.h, for tensors of a type."""
    name = next((name for known, name in REDUCTIONS.items() if op == known), None)
    if name is None:
        raise ValueError(f"{op} needs the backend in C++")
    if dtype not in TYPES and dtype not in PAIRS:
        raise TypeError(f"brigade cannot reduce tensors of {dtype}")
    if dtype in PAIRS and name not in ("sum", "avg"):
        raise TypeError("complex tensors can be summed and averaged, nothing else")
    return OPS[name]


def single(things):
    """The only one of a list."""
    if len(things) != 1:
        raise ValueError(f"one of them is needed, not {len(things)}")
    return things[0]


class Run:
    """A tensor, or a list of tensors, as one run of elements: itself where it lies so, else a copy
    that `bring_back` copies back.
    """

    def __init__(self, tensors, is_read=True, copied=False):
        self.tensors = [tensor.detach() for tensor in tensors]
        first = self.tensors[0] if self.tensors else torch.empty(0)
        for tensor in self.tensors:
            if tensor.layout != torch.strided or tensor.device.type != "cpu":
                raise TypeError("brigade takes dense tensors of the CPU")
            if tensor.dtype != first.dtype:
                raise TypeError(f"tensors of {first.dtype} and of {tensor.dtype} in one call")
        plain = len(self.tensors) == 1 and first.is_contiguous()
        self.is_copy = copied or not plain or first.is_conj() or first.is_neg()
        self.data = first
        if self.is_copy:
            self.data = torch.empty(sum(self.lengths()), dtype=first.dtype)
        if self.is_copy and is_read:
            for part, tensor in zip(self.data.split(self.lengths()), self.tensors):
                part.view(tensor.shape).copy_(tensor)
        self.dtype, self.each = element(first.dtype)

    def lengths(self):
        """Elements of each tensor, as torch counts them."""
        return [tensor.numel() for tensor in self.tensors]

    def counts(self):
        """Elements of each tensor, as brigade.h counts them."""
        return [length * self.each for length in self.lengths()]

    @property
    def count(self):
        return self.data.numel() * self.each

    @property
    def address(self):
        return self.data.data_ptr()

    @property
    def type(self):
        return self.data.dtype

    def bring_back(self):
        """Copy results to where they belong."""
        if self.is_copy:
            for part, tensor in zip(self.data.split(self.lengths()), self.tensors):
                tensor.copy_(part.view(tensor.shape))


def apart(tensors, others):
    """A run to be read of tensors that may lie in memory that is written."""
    written = {other.untyped_storage().data_ptr() for other in others if other.numel()}
    shared = any(tensor.untyped_storage().data_ptr() in written for tensor in tensors)
    return Run(tensors, copied=shared)


def rows(tensor, splits, each, size):
    """How many elements of a tensor go to each of `size` ranks: `splits` rows of it, or as many to
    one as to the other; one of them has `each` of brigade.h's.
    """
    there = tensor.shape[0] if tensor.dim() else 1
    row = tensor.numel() // there * each if there else 0
    if not splits:
        if there % size:
            raise ValueError(f"{there} rows cannot be split among {size} ranks")
        return [there // size * row] * size
    if len(splits) != size or sum(splits) != there or min(splits) < 0:
        raise ValueError(f"splits {splits} of {there} rows for {size} ranks")
    return [split * row for split in splits]
