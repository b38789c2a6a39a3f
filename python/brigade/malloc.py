"""glibc's malloc, told to keep what a training step frees, since the next one takes as much again.

Gradients and activations of a step on CPU are freed and allocated anew in the next. glibc gives
the free end of its heap back to the system where it can, and then the next step has a page fault
for every 4 KiB of it: a third of the time of a step of 25 million parameters, over any back-end.
"""

import ctypes
import os

VARIABLE = "TORCH_BRIGADE_KEEP_MEMORY"
# Who has set one of these has thought about it.
USERS_OWN = ["MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_"]
USERS_TUNABLES = ["glibc.malloc.trim_threshold", "glibc.malloc.mmap_threshold"]

# From glibc's malloc.h.
TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3
# Blocks up to this come from the heap; malloc takes no more, and learns it by itself in time.
LARGEST_IN_HEAP = 32 << 20
# Free bytes at the end of the heap that stay: the largest that the call takes.
KEPT = 2**31 - 1


def keep_freed():
    """Have this process's malloc keep up to 2 GiB that are free; whether it does.

    Left alone where the user says so or has chosen otherwise, and where malloc is not glibc's.
    """
    tunables = os.environ.get("GLIBC_TUNABLES", "")
    if (
        os.environ.get(VARIABLE) == "0"
        or any(name in os.environ for name in USERS_OWN)
        or any(name in tunables for name in USERS_TUNABLES)
    ):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except AttributeError:
        return False
    # The first alone would be harm: setting either stops malloc from learning the other.
    return bool(mallopt(MMAP_THRESHOLD, LARGEST_IN_HEAP) and mallopt(TRIM_THRESHOLD, KEPT))
