"""Calls in flight."""

import math
import time
from numbers import Real

from .library import IN_PROGRESS, LIBRARY, check

# Python handles signals between two waits, so none is longer. [seconds]
SIGNALS_AFTER = 0.1


class Work:
    """A call in flight, or those of a group. Their buffers belong to it until it has ended."""

    def __init__(self, handle, spans):
        self._handle, self._spans = handle, spans

    def done(self):
        """Whether the call has ended, well or not."""
        return LIBRARY.brigade_work_test(self._handle) != IN_PROGRESS

    def wait(self, timeout=None):
        """Wait for the end, at most `timeout` seconds; whether it has come. Raises its error.

        Signals are handled meanwhile: Ctrl-C is a KeyboardInterrupt, and the call goes on.
        """
        deadline = math.inf if timeout is None else time.monotonic() + seconds(timeout)
        while True:
            left = max(deadline - time.monotonic(), 0)
            limit = math.ceil(min(left, SIGNALS_AFTER) * 1000)
            result = LIBRARY.brigade_work_wait(self._handle, limit)
            if result != IN_PROGRESS:
                check(result)
                return True
            if left == 0:
                return False

    def __reduce__(self):
        raise TypeError("a call in flight is of its process")

    def __del__(self):
        LIBRARY.brigade_work_wait(self._handle, -1)
        LIBRARY.brigade_work_free(self._handle)


def seconds(timeout):
    """A timeout as a number."""
    if not isinstance(timeout, Real):
        kind = type(timeout).__name__
        raise TypeError(f"timeout has to be a number of seconds or None, and is of type {kind}")
    return timeout
