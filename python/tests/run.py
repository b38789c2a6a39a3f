"""Runs the cases: every one in fresh processes, one for each rank, with a deadline.

    python tests/run.py                        all cases, 2 and 4 ranks, brigade beside gloo
    python tests/run.py --backends brigade --worlds 2 --only ddp fsdp
    python tests/run.py --quick                what CI runs
    python tests/run.py --at-once 1            no two cases beside each other
    python tests/run.py --python               with the backend in Python instead of that in C++

Needs torch and an installed brigade. A case is a function of cases/ that raises if something is
wrong; most compare with what one process computes. Ends with 1 if a case failed on brigade, or if
one failed on gloo that is not known to fail there.
"""

import argparse
import faulthandler
import gc
import os
import re
import shutil
import signal
import socket
import sys
import tempfile
import time
import traceback
from pathlib import Path

import torch
import torch.distributed as dist

from cases import CASES

# What triton's bindings say where the interpreter leaves them what was frozen.
OF_WHAT_STAYS = re.compile(r"nanobind: | - (leaked|\.\.\. skipped) |See https://nanobind")


def hold_port():
    """A port that nobody else is given as long as the socket is there; a store may listen at it."""
    holder = socket.socket()
    holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    holder.bind(("127.0.0.1", 0))
    return holder, holder.getsockname()[1]


def be_rank(case, backend, rank, world, port, folder):
    """The life of one rank; returns its exit status."""
    os.environ.update(
        RANK=str(rank), WORLD_SIZE=str(world), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port)
    )
    os.environ.update(case.environment)
    if rank in case.in_python:
        os.environ["TORCH_BRIGADE_BACKEND"] = "python"
    if "TORCH_DISTRIBUTED_DEBUG" in case.environment:
        dist.set_debug_level_from_env()
    torch.set_num_threads(1)
    torch.manual_seed(1234)
    os.chdir(folder)
    case.run(backend, rank, world)
    return 0


def start_rank(case, backend, rank, world, port, folder):
    pid = os.fork()
    if pid:
        return pid
    # A child of its own from here on: what it prints goes to a file, and it never returns.
    status = 1
    try:
        out = os.open(folder / f"rank{rank}.log", os.O_WRONLY | os.O_CREAT, 0o600)
        os.dup2(out, 1)
        os.dup2(out, 2)
        faulthandler.enable()
        faulthandler.dump_traceback_later(case.seconds - 2, exit=False)
        status = be_rank(case, backend, rank, world, port, folder)
    except SystemExit as exit:
        status = exit.code or 0
    except BaseException:
        traceback.print_exc()
    faulthandler.cancel_dump_traceback_later()
    if status == 0 and case.is_program:
        # As a program ends: handlers of atexit, then the interpreter, which takes seconds.
        sys.exit(0)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


class Running:
    """A case that goes on, with a process for each rank."""

    def __init__(self, case, backend, world):
        self.case, self.backend, self.world = case, backend, world
        self.name = f"{case.name}, {backend}, {world} ranks"
        self.begin, self.cpu, self.statuses = time.monotonic(), 0.0, {}
        self.folder = Path(tempfile.mkdtemp(prefix="brigade-torch-"))
        self.holder, port = hold_port()
        self.pids = []
        for rank in range(world):
            self.pids.append(start_rank(case, backend, rank, world, port, self.folder))

    def has_ended(self):
        """Whether all ranks have; those that take too long are ended."""
        for pid in self.pids:
            self.reap(pid, os.WNOHANG)
        if self.took() >= self.case.seconds:
            self.kill()
        return len(self.statuses) == len(self.pids)

    def reap(self, pid, how):
        if pid in self.statuses:
            return
        ended, status, used = os.wait4(pid, how)
        if ended:
            self.statuses[pid] = os.waitstatus_to_exitcode(status)
            self.cpu += used.ru_utime + used.ru_stime

    def kill(self):
        """End those that have not ended themselves."""
        for pid in self.pids:
            if pid not in self.statuses:
                os.kill(pid, signal.SIGKILL)
                self.reap(pid, 0)
                self.statuses[pid] = None

    def took(self):
        return time.monotonic() - self.begin

    def wrong(self):
        """None if all was well, else what was not."""
        statuses = [self.statuses[pid] for pid in self.pids]
        if statuses == self.case.statuses(self.world):
            return None
        what = [f"ended with {statuses}, wanted {self.case.statuses(self.world)}"]
        for rank in range(self.world):
            log = self.folder / f"rank{rank}.log"
            text = log.read_text(errors="replace") if log.exists() else "it never began"
            lines = [line for line in text.splitlines() if not OF_WHAT_STAYS.match(line)]
            what += [f"rank {rank}: {line}" for line in lines[-8:]]
        return "\n".join(what)

    def clear(self):
        self.kill()
        self.holder.close()
        shutil.rmtree(self.folder, ignore_errors=True)


def ended_ones(wanted, at_once):
    """Runs cases, so many beside each other, and yields each when it has ended."""
    wanted, running, runner = list(reversed(wanted)), [], os.getpid()
    try:
        while wanted or running:
            while wanted and len(running) < at_once:
                running.append(Running(*wanted.pop()))
            for one in [one for one in running if one.has_ended()]:
                yield one
                running.remove(one)
                one.clear()
            time.sleep(0.01)
    finally:
        # Ranks that end as programs do come by here.
        if os.getpid() == runner:
            for one in running:
                one.clear()


def parsed():
    parser = argparse.ArgumentParser()
    parser.add_argument("--backends", nargs="+", default=["brigade", "gloo"])
    parser.add_argument("--worlds", nargs="+", type=int, default=[2, 4])
    parser.add_argument("--only", nargs="+", default=[""], help="parts of names")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--python", action="store_true", help="the backend in Python")
    parser.add_argument("--at-once", type=int, default=4, help="cases beside each other")
    return parser.parse_args()


def main():
    arguments = parsed()
    if arguments.python:
        os.environ["TORCH_BRIGADE_BACKEND"] = "python"
    wanted = [
        (case, backend, world)
        for case in CASES
        if any(part in case.name for part in arguments.only) and case.quick >= arguments.quick
        for world in arguments.worlds
        for backend in arguments.backends
        if world in case.worlds and backend in case.backends
    ]
    # What torch has made when it was imported is no garbage. Ranks that look through all of it when
    # their interpreter goes, and copy its pages, would take three times as long to end.
    gc.freeze()
    bad, tally, begin, cpu = [], {}, time.monotonic(), 0.0
    for one in ended_ones(wanted, arguments.at_once):
        wrong, case = one.wrong(), one.case
        known = one.backend == "gloo" and case.gloo_fails
        known |= one.backend == "brigade" and arguments.python and case.needs_native
        verdict = "ok" if wrong is None else ("FAILS, as known" if known else "FAILED")
        told = f"{case.name:58} {one.backend:8} {one.world}  {verdict:16}"
        print(f"{told} {one.took():5.1f} s, {one.cpu:4.1f} s of CPU", flush=True)
        cpu += one.cpu
        passed, all_of_them = tally.get((one.backend, one.world), (0, 0))
        tally[one.backend, one.world] = passed + (wrong is None), all_of_them + 1
        if wrong is not None and not known:
            bad.append((one.name, wrong))
    for (backend, world), (passed, all_of_them) in sorted(tally.items()):
        print(f"{backend}, {world} ranks: {passed} of {all_of_them}")
    print(f"took {time.monotonic() - begin:.0f} s, {cpu:.0f} s of CPU")
    # At the end, where whoever has only that sees them.
    for name, wrong in bad:
        print("\n".join([f"failed: {name}"] + ["  | " + line for line in wrong.splitlines()]))
    sys.stdout.flush()
    os._exit(bool(bad) or not tally)


if __name__ == "__main__":
    main()
