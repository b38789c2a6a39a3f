"""What torch waits for, and the threads that bring it about."""

import contextlib
import queue
import threading
import time

import torch
import torch.distributed as dist


# Threads that run what hangs on futures.
FOLLOWING = set()


def follow(function):
    """Run it on a thread of its own: it may call collectives, and wait for further ones."""

    def run():
        try:
            function()
        finally:
            FOLLOWING.discard(thread)

    thread = threading.Thread(target=run, daemon=True)
    FOLLOWING.add(thread)
    thread.start()


def wait_for_those_that_follow(seconds):
    """One that still runs when the interpreter goes would abort the process."""
    deadline = time.monotonic() + seconds
    for thread in list(FOLLOWING):
        thread.join(max(0, deadline - time.monotonic()))


class Work(dist.Work):
    """Calls on their way. `wait` raises what they failed with, and so does what hangs on the
    future: an exception that is set as the value of a torch.futures.Future is none for C++.
    """

    def __init__(self, outputs, batch=None):
        super().__init__()
        self._outputs, self._batch, self._error = outputs, batch, None
        self._settled = threading.Event()
        self._lock = threading.Lock()
        self._begin = self._future = None

    def carry_out(self, body):
        """Run the body; whatever it raises is how this ends."""
        error = None
        try:
            body()
        except BaseException as raised:
            error = raised
        self.settle(error)

    def settle(self, error):
        """Say that this has ended."""
        with self._lock:
            self._error = error
            self._settled.set()
            begin = self._begin
            batch, self._batch = self._batch, None
        if begin is not None:
            follow(lambda: begin.set_result(None))
        if batch is not None:
            batch.ended(error)

    def wait(self, timeout=None):
        seconds = timeout.total_seconds() if timeout else None
        if not self._settled.wait(seconds):
            raise dist.DistBackendError(f"a call still goes on after {seconds} s")
        with self._lock:
            future = self._future
        if future is not None:
            # Another thread completes it. Who has asked for it finds it so behind this, as with
            # gloo, but not what hangs on it: that may itself wait for this work.
            with contextlib.suppress(Exception):
                future.wait()
        self._value()
        return True

    def is_completed(self):
        return self._settled.is_set()

    def is_success(self):
        return self._settled.is_set() and self._error is None

    def exception(self):
        return self._error

    def result(self):
        return self._outputs

    def get_future(self):
        with self._lock:
            if self._future is None:
                begin = torch.futures.Future()
                self._future = begin.then(lambda _begin: self._value())
                if self._settled.is_set():
                    begin.set_result(None)
                else:
                    self._begin = begin
            return self._future

    def _value(self):
        if self._error is not None:
            raise self._error
        return self._outputs


class Batch(Work):
    """Calls that end as one. It counts those that go on, and itself as long as calls are added. It
    has none of their tensors: torch may leave one open for good, and calls go on to join it.
    """

    def __init__(self):
        super().__init__([])
        self._going_on, self._first = 1, None

    def add(self):
        """One more goes on."""
        with self._lock:
            self._going_on += 1

    def ended(self, error=None):
        """One less goes on; the last one ends the batch."""
        with self._lock:
            self._first = self._first or error
            self._going_on -= 1
            is_last = self._going_on == 0
        if is_last:
            self.settle(self._first)


class Lane:
    """Jobs that are done one after the other, on a thread that the first one starts."""

    def __init__(self):
        self._jobs = queue.SimpleQueue()
        self._changed = threading.Condition()
        self._left, self._thread = 0, None

    def post(self, job):
        """Queue a job, which must not raise."""
        with self._changed:
            self._left += 1
            if self._thread is None:
                self._thread = threading.Thread(target=self._serve, daemon=True)
                self._thread.start()
        self._jobs.put(job)

    def do(self, job):
        """Do a job, which must not raise, on this thread behind all that is queued."""
        with self._changed:
            self._changed.wait_for(lambda: self._left == 0)
            self._left += 1
        try:
            job()
        finally:
            self._done()

    def drain(self, timeout=None):
        """Wait until all is done; whether it is."""
        with self._changed:
            return self._changed.wait_for(lambda: self._left == 0, timeout)

    def close(self):
        """End the thread after what is queued."""
        with self._changed:
            thread, self._thread = self._thread, None
        if thread is not None:
            self._jobs.put(None)
            if thread is not threading.current_thread():
                thread.join(10)

    def _serve(self):
        while (job := self._jobs.get()) is not None:
            job()
            # Its tensors are not the lane's until the next one comes.
            del job
            self._done()

    def _done(self):
        with self._changed:
            self._left -= 1
            self._changed.notify_all()
