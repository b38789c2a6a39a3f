"""Puts libbrigade into the package, and backends for torch.

    pip install --no-build-isolation ./python            for the torch that is installed
    pip wheel --no-build-isolation --no-deps ./python    the same as a wheel
    python setup.py sdist                                sources that build where there is cargo

Needs cargo; with torch also a C++20 compiler ($CXX, or c++). BRIGADE_LIBRARY names a libbrigade.so
that has been built already; BRIGADE_TORCHES names folders with a torch in each, between colons, for
a wheel that fits them all. A torch without a backend of its own gets the one in Python.
"""

import functools
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

from setuptools import Distribution, __version__ as setuptools_version, setup

if int(setuptools_version.split(".")[0]) < 77:
    # What pip would have seen to, were it not for --no-build-isolation.
    sys.exit(
        f"setuptools {setuptools_version} of {sys.executable} is too old: "
        f"{sys.executable} -m pip install 'setuptools>=77'"
    )

from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py
from setuptools.command.sdist import sdist

PYTHON = Path(__file__).resolve().parent
# The Rust workspace: beside this folder, or in it where sdist has put it.
ROOT = PYTHON / "workspace" if (PYTHON / "workspace").exists() else PYTHON.parent
# Those of its folders that libbrigade is made of.
CRATES = ["comm", "ffi", "offload", "transports"]
# What a torch says of itself, in a process of its own.
ASK = """
import json, torch
from torch.utils import cpp_extension as cpp
if torch.distributed.is_available():
    print(json.dumps([torch.__version__, cpp.include_paths(), cpp.library_paths()]))
"""


def version():
    """The version of the workspace."""
    return re.search(r'^version = "(.*)"', (ROOT / "Cargo.toml").read_text(), re.M).group(1)


@functools.cache
def torches():
    """Version, headers and libraries of each torch that a backend can be built for."""
    given = os.environ.get("BRIGADE_TORCHES")
    found = []
    for folder in given.split(os.pathsep) if given else [None]:
        path = [folder] if folder else [one for one in sys.path if one]
        environment = dict(os.environ, PYTHONPATH=os.pathsep.join(path))
        asked = subprocess.run(
            [sys.executable, "-c", ASK], env=environment, text=True, capture_output=True
        )
        if asked.returncode == 0 and asked.stdout.strip():
            found.append(json.loads(asked.stdout.splitlines()[-1]))
        elif folder:
            raise SystemExit(f"no torch can be imported from {folder}: {asked.stderr}")
    return found


def run(command, lacking, **more):
    """Run it; where there is no such program, say what brings it. What it prints says the rest."""
    try:
        subprocess.run(command, check=True, **more)
    except FileNotFoundError:
        raise SystemExit(f"{command[0]} is not on the PATH: {lacking}") from None
    except subprocess.CalledProcessError as error:
        raise SystemExit(f"{command[0]} ended with {error.returncode}; see above why") from None


def library():
    """Where libbrigade.so lies; builds it unless somebody has."""
    given = os.environ.get("BRIGADE_LIBRARY")
    if given and not Path(given).is_file():
        raise SystemExit(f"BRIGADE_LIBRARY={given} is no file; without it cargo builds libbrigade")
    if given:
        return Path(given)
    lacking = "install Rust 1.89 or later, or name a built libbrigade.so: BRIGADE_LIBRARY"
    if not shutil.which("cargo"):
        raise SystemExit(f"cargo is not on the PATH: {lacking}")
    run(["sh", ROOT / "ffi" / "build.sh", "brigade-ffi"], lacking, cwd=ROOT)
    target = Path(os.environ.get("CARGO_TARGET_DIR", "target"))
    return ROOT / target / "release" / "libbrigade.so"


def compile_backend(torch, package):
    """The C++ of c10d/ as an extension module, named after the torch that it fits."""
    number, includes, libraries = torch
    name = "_torch_{}_{}".format(*number.split(".")[:2])
    includes = includes + [sysconfig.get_paths()["include"]]
    run(
        [
            # A wrapper, such as ccache, may stand in front of the compiler.
            *shlex.split(os.environ.get("CXX", "c++")),
            "-std=c++20", "-O2", "-fPIC", "-shared", "-Wall",
            "-fvisibility=hidden", f"-DTORCH_EXTENSION_NAME={name}", f"-I{ROOT / 'include'}",
            *[f"-isystem{path}" for path in includes],
            PYTHON / "c10d" / "all.cpp",
            "-o", package / (name + sysconfig.get_config_var("EXT_SUFFIX")),
            package / "libbrigade.so.0", "-Wl,-rpath,$ORIGIN",
            *[f"-L{path}" for path in libraries],
            "-ltorch_python", "-ltorch_cpu", "-ltorch", "-lc10",
        ],
        "install a C++20 compiler and Python's headers, or name the compiler: CXX",
    )


class Build(build_py):
    def run(self):
        package = Path(self.build_lib) / "brigade"
        # What an earlier build, with another torch, has left.
        shutil.rmtree(package, ignore_errors=True)
        super().run()
        shutil.copy(library(), package / "libbrigade.so.0")
        subprocess.run(["strip", "--strip-unneeded", package / "libbrigade.so.0"], check=False)
        for license in ROOT.glob("LICENSE-*"):
            shutil.copy(license, package)
        found = torches()
        for torch in found:
            compile_backend(torch, package)
        if not found:
            print("torch cannot be imported: the package comes without a backend in C++")


class Wheel(bdist_wheel):
    def get_tag(self):
        python, abi, platform = super().get_tag()
        # ctypes does not care for the version of Python; the backends for torch do.
        return (python, abi, platform) if torches() else ("py3", "none", platform)


class Sources(sdist):
    """The package, its C++, and as much of the workspace as libbrigade takes."""

    def make_release_tree(self, base_dir, files):
        super().make_release_tree(base_dir, files)
        base = Path(base_dir)
        shutil.copytree(PYTHON / "c10d", base / "c10d", dirs_exist_ok=True)
        for license in ROOT.glob("LICENSE-*"):
            shutil.copy(license, base)
        workspace = base / "workspace"
        ignored = shutil.ignore_patterns("target", "__pycache__")
        for folder in [*CRATES, "include"]:
            shutil.copytree(ROOT / folder, workspace / folder, ignore=ignored)
        for name in ["Cargo.lock", *[license.name for license in ROOT.glob("LICENSE-*")]]:
            shutil.copy(ROOT / name, workspace)
        (workspace / "Cargo.toml").write_text(shortened((ROOT / "Cargo.toml").read_text()))


def shortened(manifest):
    """The manifest of the workspace without the crates that are not among the sources."""
    begin, end = manifest.find("\n[package]"), manifest.find("\n[profile.")
    workspace = manifest if begin < 0 else manifest[:begin] + "\n" + manifest[end:]
    members = json.loads(re.search(r"^members = (\[.*\])$", workspace, re.M).group(1))
    kept = [member for member in members if member.split("/")[0] in CRATES]
    workspace = re.sub(r"^members = .*$", f"members = {json.dumps(kept)}", workspace, flags=re.M)
    # Profiles of guests that nothing here asks for would be warned of.
    sections = re.split(r"(?m)^(?=\[)", workspace)
    return "".join(part for part in sections if not part.startswith("[profile.dev.package"))


class Binary(Distribution):
    def has_ext_modules(self):
        return True


setup(
    version=version(),
    distclass=Binary,
    cmdclass={"build_py": Build, "bdist_wheel": Wheel, "sdist": Sources},
)
