"""Signals that come while the main thread waits in a call.

Python runs their handlers once C has returned, and a call may wait for minutes. So libbrigade asks
meanwhile whether to go on, which lets Python run them; joining is left to another thread. Nothing of
this happens before the first communicator is made here: torch's calls hear signals when they end, as
with its own backends, and handlers that make such calls find themselves between two others.
"""

import ctypes
import threading

from .library import LIBRARY, SUCCESS, Error, check, last_error

LOCAL = threading.local()


def _handle():
    """Each time that it is resumed: whether a handler has raised something."""
    answer = 0
    while True:
        try:
            while True:
                # Handlers run as it goes on. In a function they might run in front of its first
                # line, where nothing catches what they raise.
                yield answer
                answer = 0
        except GeneratorExit:
            return
        except BaseException as error:
            LOCAL.raised, answer = error, 1


_HANDLER = _handle()
_HANDLER.send(None)
# The generator's own method takes the argument of C, which is NULL: None, as it has to be.
_ASK = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)(_HANDLER.send)


def is_main():
    """Whether this is the thread that handles signals."""
    return threading.current_thread() is threading.main_thread()


def hear():
    """Have the calls of this thread hear signals, if it is the one that handles them."""
    if not getattr(LOCAL, "is_asked", False):
        if is_main():
            check(LIBRARY.brigade_interrupt_by(_ASK, None))
        LOCAL.is_asked = True


def call(function, *arguments):
    """Call what waits for other ranks, and raise what it failed with, or what a handler raised."""
    # The communicator may have been made by another thread.
    hear()
    LOCAL.raised = None
    result = function(*arguments)
    if result == SUCCESS:
        return
    failed, raised = Error(result, last_error()), LOCAL.raised
    if raised is not None:
        raise raised from failed
    raise failed


def join(function, handle, *arguments):
    """Call what makes a communicator in `handle`, and raise what it failed with."""
    if not is_main():
        return check(function(ctypes.byref(handle), *arguments))
    failed, ended, lock = [], threading.Event(), threading.Lock()
    wanted = [True]

    def joining():
        try:
            check(function(ctypes.byref(handle), *arguments))
        except BaseException as error:
            failed.append(error)
        with lock:
            ended.set()
            if not wanted[0] and handle:
                LIBRARY.brigade_comm_destroy(handle)

    # At the end of the program nobody waits for it.
    threading.Thread(target=joining, name="brigade-join", daemon=True).start()
    try:
        ended.wait()
    except BaseException:
        with lock:
            wanted[0] = False
            if ended.is_set() and handle:
                LIBRARY.brigade_comm_destroy(handle)
        raise
    if failed:
        raise failed[0]
