"""The programs whose calls `compare` times: ours, an MPI's and Gloo's."""

import contextlib
import json
import os
import pathlib
import re
import select
import shlex
import shutil
import subprocess
import sys
from itertools import count

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
METHOD = ["40000", "5", "2000", "2"]  # budget in us, calls, warm-up: as in bench/src/measure.rs
LIMIT_S, BUILD_LIMIT_S = 60, 3600


class Trouble(Exception):
    """What went wrong, in a sentence for the user."""


def end(*children):
    """Ask these children to end, and insist after five seconds."""
    for child in children:
        child.terminate()
    for child in children:
        try:
            child.wait(5)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()


def start(command, **streams):
    try:
        return subprocess.Popen(list(map(str, command)), text=True, **streams)
    except OSError as error:
        raise Trouble(f"cannot start {command[0]}: {error.strerror}") from error


def output_of(*command, limit_s=LIMIT_S):
    pipe, text = subprocess.PIPE, shlex.join(map(str, command))
    child = start(command, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe)
    try:
        out, err = child.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        raise Trouble(f"`{text}` was ended after {limit_s} s") from None
    finally:
        end(child)
    if child.returncode:
        raise Trouble(f"`{text}` failed with {child.returncode}:\n{err.strip()[-1500:]}")
    return out.strip()


class Brigade:
    def __init__(self, args):
        self.program, self.ranks = args.brigade, args.ranks
        self.touch = ["--touch"] if args.touch else []
        if not self.program:
            print("building brigade (cargo build --release)", file=sys.stderr)
            manifest = f"--manifest-path={ROOT / 'Cargo.toml'}"
            output_of("cargo", "build", "--release", "-q", manifest, limit_s=BUILD_LIMIT_S)
            target = os.environ.get("CARGO_TARGET_DIR", ROOT / "target")
            self.program = pathlib.Path(target, "release/brigade")
        self.version = output_of(self.program, "--version")

    def measure(self, transport, collective, size):
        flags = f"{collective} -n {self.ranks} --transport {transport} -b {size} -e {size}"
        flags += " --check --json -"
        lines = output_of(self.program, "bench", *flags.split(), *self.touch).splitlines()
        in_place = collective == "broadcast"  # as the peers, who have one buffer for it
        return next(line for line in map(json.loads, lines) if line["in_place"] == in_place)


class Mpi:
    transport = "shm"

    def __init__(self, args, folder):
        compiler, launcher, said = self.tools(args)
        flags = ["-np", args.ranks]
        if version := re.search(r"\(Open(?: MPI|RTE)\) ((\d+)\S*)", said):
            wire = "vader" if int(version[2]) < 5 else "sm"  # renamed between the two
            self.name, how = "Open MPI", f" (pml ob1, btl {wire})"
            flags += f"--mca pml ob1 --mca btl {wire},self".split()
            # Else more ranks than cores are refused. Where there are enough it would not bind them
            # then, as is its default.
            flags += ["--oversubscribe"] if args.ranks > len(args.cpus) else []
            if os.getuid() == 0:
                os.environ.update(OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")
        elif version := re.search(r"Intel\(R\) MPI Library.* Version (\S+)", said):
            self.name, how = "Intel MPI", " (shm)"
            os.environ.update(I_MPI_FABRICS="shm", I_MPI_CC="cc")
            os.environ.setdefault("I_MPI_ROOT", str(pathlib.Path(compiler).parent.parent))
        else:
            raise Trouble(f"{launcher} is neither Open MPI's nor Intel's: {said[:60]}")
        self.version = f"{self.name} {version[1]}{how}"
        program = folder / "mpi_collective"
        output_of(compiler, "-O3", HERE / "mpi_collective.c", "-o", program)
        self.command = [launcher, *flags, program]
        self.is_touched = int(args.touch)

    def tools(self, args):
        """Compiler and launcher, and what the latter says of itself."""
        if args.mpi:
            os.environ["PATH"] = f"{args.mpi}:{os.environ['PATH']}"
        for pair in [("mpicc.openmpi", "mpirun.openmpi"), ("mpicc", "mpirun")][bool(args.mpi):]:
            compiler, launcher = map(shutil.which, pair)
            if compiler and launcher:
                return compiler, launcher, output_of(launcher, "--version")
        raise Trouble("no mpicc and mpirun are installed; on Debian: apt-get install openmpi-bin "
                      "libopenmpi-dev")

    def world(self):
        return contextlib.nullcontext()  # its ranks spin while they wait: a world for each time

    def measure(self, collective, size):
        command = [*self.command, collective, size, *METHOD, self.is_touched]
        return json.loads(output_of(*command).splitlines()[-1])


class Gloo:
    name, transport = "Gloo", "tcp"

    def __init__(self, args, folder):
        self.folder, self.python, self.numbers = folder, args.python, count()
        self.ranks = args.ranks
        ask = "from torch import distributed as d, version; d.ProcessGroupGloo; "
        ask += "print(version.__version__)"
        try:
            self.version = f"Gloo of PyTorch {output_of(self.python, '-c', ask)}"
        except Trouble as trouble:
            why = str(trouble).splitlines()[-1]
            raise Trouble(f"{self.python} has no torch with gloo ({why}): pip install torch numpy, "
                          "and --python PATH of the interpreter that has it") from None
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")

    @contextlib.contextmanager
    def world(self):
        """One world a round: torch takes seconds to load, and its ranks sleep while ours run."""
        store, self.children = self.folder / f"store{next(self.numbers)}", []
        program = [self.python, HERE / "gloo_collective.py", store]
        with open(f"{store}.errors", "w+", encoding="utf-8") as self.errors:
            streams = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": self.errors}
            try:
                for rank in range(self.ranks):
                    command = [*self.place(rank), *program, rank, self.ranks, *METHOD]
                    self.children.append(start(command, **streams))
                self.answer()
                yield
            finally:
                end(*self.children)

    def place(self, rank):
        """What starts a program where this rank is to be."""
        return []

    def answer(self):
        """The next line of rank 0."""
        answers = self.children[0].stdout
        line = answers.readline() if select.select([answers], [], [], LIMIT_S)[0] else ""
        if not line:
            self.errors.seek(0)
            said = self.errors.read().strip()[-1500:] or "and it does not say why"
            raise Trouble(f"no answer from Gloo: {said}")
        return line

    def measure(self, collective, size):
        for child in self.children:
            print(collective, size, file=child.stdin, flush=True)
        return json.loads(self.answer())
