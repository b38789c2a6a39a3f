"""The groups of torch.distributed end with their process, however that ends."""

import atexit
import contextlib
import multiprocessing
import os
import sys
import threading
from multiprocessing import util

# How much of what an exception says the others hear.
REASON_LENGTH = 500


class Ends:
    """Ends the groups of a backend. If an exception ends the process the others hear so, and nobody
    waits any more.
    """

    def __init__(self, backend):
        self._backend, self._imported_by, self._owner = backend, os.getpid(), None
        # Threads that still run callbacks when the interpreter goes would abort the process.
        atexit.register(self._end_program)

    def note(self):
        """This process makes a group."""
        if self._owner == os.getpid():
            return
        self._owner = os.getpid()
        if multiprocessing.parent_process() is not None:
            util.Finalize(None, self._end_child, exitpriority=0)

    def _end_program(self):
        # In a session of the interpreter an exception that was seen has ended nothing.
        error = None if hasattr(sys, "ps1") else getattr(sys, "last_value", None)
        self._end_all(error, not awaits_children())

    def _end_child(self):
        """A child of multiprocessing catches what its function raises, and does not run what is
        registered with atexit where it was forked: it has no other exit than os._exit.
        """
        error = sys.exc_info()[1]
        if isinstance(error, SystemExit):
            # That of torch.multiprocessing ends so in place of what it caught.
            error = error.__context__ if error.code else None
        is_spawned = self._imported_by == os.getpid() and was_spawned()
        threads = [one for one in threading.enumerate() if not one.daemon]
        threads.remove(threading.current_thread())
        if error is None:
            if is_spawned:
                # Its exit is as that of programs, once its threads have ended.
                return
            # Python waits for them too, but behind this.
            for thread in threads:
                thread.join()
        self._end_all(error, is_spawned and not threads and not awaits_children())

    def _end_all(self, error, has_exit):
        why = ""
        # In a child of fork that has made none the groups are the parent's.
        if error is not None and self._owner == os.getpid():
            why = f"its program ended with {type(error).__name__}"
            with contextlib.suppress(Exception):
                why += f": {error}"
        why = why[:REASON_LENGTH].encode(errors="replace").decode()
        self._backend.end_all(why, has_exit)


def was_spawned():
    """Whether this child of multiprocessing has an interpreter of its own, which ends as that of
    programs; one that such a child has forked has its arguments, too.
    """
    method = getattr(multiprocessing.current_process(), "_start_method", None)
    method = method or multiprocessing.get_start_method()
    return method == "spawn" and "--multiprocessing-fork" in sys.orig_argv


def awaits_children():
    """Whether Python waits for some behind this: they may be in calls with this process."""
    return any(not child.daemon for child in multiprocessing.active_children())
