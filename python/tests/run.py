"""Runs the cases: every one in fresh processes, one for each rank, with a deadline.

    python tests/run.py                        all cases, 2 and 4 ranks, brigade beside gloo
    python tests/run.py --backends brigade --worlds 2 --only ddp fsdp
    python tests/run.py --quick                what CI runs
    python tests/run.py --python               with the backend in Python instead of that in C++

Needs torch and an installed brigade. A case is a function of cases/ that raises if something is
wrong; most compare with what one process computes. Ends with 1 if a case failed on brigade, or if
one failed on gloo that is not known to fail there.
"""

import argparse
import faulthandler
import os
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
    if status == 0 and case.bare:
        # As a program ends: handlers of atexit, then the interpreter, which takes seconds.
        sys.exit(0)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def wait_all(pids, deadline):
    """Exit statuses in order; None for who had to be killed."""
    statuses = {}
    while len(statuses) < len(pids) and time.monotonic() < deadline:
        for pid in pids:
            if pid not in statuses:
                ended, status = os.waitpid(pid, os.WNOHANG)
                if ended:
                    statuses[pid] = os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    for pid in pids:
        if pid not in statuses:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
    return [statuses.get(pid) for pid in pids]


def run_case(case, backend, world):
    """None if all is well, else what was wrong."""
    folder, runner = Path(tempfile.mkdtemp(prefix="brigade-torch-")), os.getpid()
    holder, port = hold_port()
    try:
        pids = [start_rank(case, backend, rank, world, port, folder) for rank in range(world)]
        statuses = wait_all(pids, time.monotonic() + case.seconds)
        if statuses == case.statuses(world):
            return None
        what = [f"ended with {statuses}, wanted {case.statuses(world)}"]
        for rank in range(world):
            log = folder / f"rank{rank}.log"
            text = log.read_text(errors="replace") if log.exists() else "it never began"
            what += [f"rank {rank}: {line}" for line in text.splitlines()[-8:]]
        return "\n".join(what)
    finally:
        holder.close()
        # Ranks that end as programs do come by here.
        if os.getpid() == runner:
            shutil.rmtree(folder, ignore_errors=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--backends", nargs="+", default=["brigade", "gloo"])
    parser.add_argument("--worlds", nargs="+", type=int, default=[2, 4])
    parser.add_argument("--only", nargs="+", default=[""], help="parts of names")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--python", action="store_true", help="the backend in Python")
    arguments = parser.parse_args()
    if arguments.python:
        os.environ["TORCH_BRIGADE_BACKEND"] = "python"
    bad = []
    tally = {}
    for case in CASES:
        if not any(part in case.name for part in arguments.only):
            continue
        if arguments.quick and not case.quick:
            continue
        for world in arguments.worlds:
            for backend in arguments.backends:
                if world not in case.worlds or backend not in case.backends:
                    continue
                begin = time.monotonic()
                wrong = run_case(case, backend, world)
                known = backend == "gloo" and case.gloo_fails
                known |= backend == "brigade" and arguments.python and case.needs_native
                verdict = "ok" if wrong is None else ("FAILS, as known" if known else "FAILED")
                took = time.monotonic() - begin
                print(f"{case.name:40} {backend:8} {world}  {verdict:16} {took:5.1f} s", flush=True)
                passed, all_of_them = tally.get((backend, world), (0, 0))
                tally[backend, world] = passed + (wrong is None), all_of_them + 1
                if wrong is not None and not known:
                    bad.append((f"{case.name}, {backend}, {world} ranks", wrong))
    for (backend, world), (passed, all_of_them) in sorted(tally.items()):
        print(f"{backend}, {world} ranks: {passed} of {all_of_them}")
    # At the end, where whoever has only that sees them.
    for name, wrong in bad:
        print("\n".join([f"failed: {name}"] + ["  | " + line for line in wrong.splitlines()]))
    sys.exit(bool(bad) or not tally)


if __name__ == "__main__":
    main()
