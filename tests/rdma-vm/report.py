"""What is said to the user, and the ways in which a run ends without its command's status."""

import sys
import time

STATUS_UNAVAILABLE = 69
STATUS_TIMEOUT = 124
STATUS_GUEST_LOST = 125

_start = time.monotonic()
_verbose = False


class Unavailable(Exception):
    """The machine cannot be had here. The text says why, and what to do next."""


class GuestLost(Exception):
    """The machine was had, and failed. The text ends with the last words of its console."""


class Damaged(Exception):
    """A file of the cache is not what was written there."""


class Stopped(BaseException):
    """A signal asked for the end."""

    def __init__(self, number):
        super().__init__(f"signal {number}")
        self.number = number


def be_verbose():
    """From now on `detail` speaks."""
    global _verbose
    _verbose = True


def say(text):
    """One line for the user, on standard error: standard output is the command's."""
    print(f"rdma-vm: {text}", file=sys.stderr, flush=True)


def detail(text):
    """A step with its time, for those who asked."""
    if _verbose:
        say(f"[{time.monotonic() - _start:6.2f} s] {text}")
