"""Groups: calls that are listed first, and begin together when all are there."""

import threading
from ctypes import byref, c_void_p

from . import signals
from .library import LIBRARY, check
from .work import Work


class Open(threading.local):
    """What a thread has open: groups within each other, and of the calls in them the communicators
    and the buffers, which stay until these have ended."""

    depth, listed = 0, ()


OPEN = Open()


class Group:
    """Calls of this thread in the body are only listed; at its end they are carried out.

    Of each communicator first its collectives, in their order, and then its messages, all at once:
    so ranks may send to each other and receive from each other, in whichever order. With
    wait=False the end returns at once, and `work` is that of all calls together.
    """

    def __init__(self, wait=True):
        self.work, self._wait = None, wait

    def __enter__(self):
        if OPEN.depth == 0:
            OPEN.listed = []
        # In front: else an interrupt in between would leave a group open that nobody ends.
        OPEN.depth += 1
        try:
            check(LIBRARY.brigade_group_start())
        except BaseException:
            OPEN.depth -= 1
            raise
        return self

    def __exit__(self, kind, _error, _traceback):
        listed, OPEN.depth = OPEN.listed, OPEN.depth - 1
        if OPEN.depth == 0:
            OPEN.listed = ()
        if kind is not None:
            check(LIBRARY.brigade_group_cancel())
        elif self._wait:
            signals.call(LIBRARY.brigade_group_end, None)
        else:
            handle = c_void_p()
            check(LIBRARY.brigade_group_end(byref(handle)))
            self.work = Work(handle, listed)
            for comm, _spans in listed:
                comm._works.add(self.work)


def group(wait=True):
    """A group of calls: `with brigade.group():` around them, as for messages that cross."""
    return Group(wait)


def note(comm, spans):
    """A call was made: if a group is open it is only listed, and needs its buffers."""
    if OPEN.depth:
        OPEN.listed.append((comm, spans))


def refuse_work():
    """The calls of a group have none of their own."""
    if OPEN.depth:
        raise ValueError(
            "in a group a call has no wait=False: with brigade.group(wait=False) all of them have "
            "one work"
        )
