"""What calls of a group are refused for before anybody is called."""

from ctypes import c_size_t

from .channel import milliseconds


def check_timeout(timeout, group_ms):
    """Refuse a timeout that nobody would wait for."""
    wanted_ms = milliseconds(timeout) if timeout is not None else 0
    # torch keeps a group's timeout as a float of 32 bits.
    if wanted_ms > group_ms * (1 + 2**-23):
        raise ValueError(
            f"a timeout of {wanted_ms:.0f} ms, but calls of this group "
            f"wait for {group_ms:.0f} ms at most, the timeout it was made with: "
            "give init_process_group or new_group the longest one that is needed"
        )


def check_fit(one, other, wanted, counts):
    """Refuse tensors of which one does not take what the other gives."""
    if one.type != other.type:
        raise TypeError(f"tensors of {one.type} and of {other.type} in one call")
    if [one.count] != list(wanted) or sum(counts) != other.count:
        raise ValueError(f"{one.count} and {other.count} elements for {len(counts)} ranks")


def counts_of(counts, size):
    """How many elements of each rank, for C."""
    if len(counts) != size:
        raise ValueError(f"a list of {len(counts)} tensors for {size} ranks")
    return (c_size_t * size)(*counts)
