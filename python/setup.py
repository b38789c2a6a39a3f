"""Puts libbrigade into the package, and the backend for the torch that is installed, if one is.

    pip install --no-build-isolation ./python

Needs cargo; with torch also a C++20 compiler ($CXX, or c++). BRIGADE_LIBRARY names a libbrigade.so
that has been built already. Where torch cannot be imported the package comes without a backend for
it.
"""

import concurrent.futures
import os
import re
import shutil
import subprocess
import sysconfig
from pathlib import Path

from setuptools import Distribution, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py

PYTHON = Path(__file__).resolve().parent
ROOT = PYTHON.parent


def version():
    """The version of the workspace."""
    return re.search(r'^version = "(.*)"', (ROOT / "Cargo.toml").read_text(), re.M).group(1)


def torch_or_none():
    """torch, where a backend can be built for it."""
    try:
        import torch
    except ImportError:
        return None
    return torch if torch.distributed.is_available() else None


def library():
    """Where libbrigade.so lies; builds it unless somebody has."""
    given = os.environ.get("BRIGADE_LIBRARY")
    if given:
        return Path(given)
    subprocess.run(["cargo", "build", "--release", "-p", "brigade-ffi"], cwd=ROOT, check=True)
    target = Path(os.environ.get("CARGO_TARGET_DIR", "target"))
    return ROOT / target / "release" / "libbrigade.so"


def compile_backend(torch, objects, package):
    """The C++ of c10d/ as an extension module, named after the torch that it fits."""
    from torch.utils import cpp_extension

    name = "_torch_{}_{}".format(*torch.__version__.split(".")[:2])
    compiler = os.environ.get("CXX", "c++")
    includes = cpp_extension.include_paths() + [sysconfig.get_paths()["include"]]
    flags = ["-std=c++20", "-O2", "-fPIC", "-fvisibility=hidden", "-Wall", f"-I{ROOT / 'include'}"]
    flags += [f"-DTORCH_EXTENSION_NAME={name}"]
    flags += [f"-isystem{path}" for path in includes]
    objects.mkdir(parents=True, exist_ok=True)

    def compile_one(source):
        made = objects / f"{source.stem}.o"
        subprocess.run([compiler, *flags, "-c", source, "-o", made], check=True)
        return made

    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as threads:
        made = list(threads.map(compile_one, sorted((PYTHON / "c10d").glob("*.cpp"))))
    out = package / (name + sysconfig.get_config_var("EXT_SUFFIX"))
    libraries = [f"-L{path}" for path in cpp_extension.library_paths()]
    libraries += ["-ltorch_python", "-ltorch_cpu", "-ltorch", "-lc10"]
    link = [compiler, "-shared", "-Wl,-rpath,$ORIGIN", "-o", out, *made]
    subprocess.run([*link, package / "libbrigade.so.0", *libraries], check=True)


class Build(build_py):
    def run(self):
        package = Path(self.build_lib) / "brigade"
        # What an earlier build, with another torch, has left.
        shutil.rmtree(package, ignore_errors=True)
        super().run()
        shutil.copy(library(), package / "libbrigade.so.0")
        subprocess.run(["strip", "--strip-unneeded", package / "libbrigade.so.0"], check=False)
        torch = torch_or_none()
        if torch is None:
            print("torch cannot be imported: the package comes without a backend for it")
        else:
            compile_backend(torch, Path(self.build_lib).parent / "c10d", package)


class Wheel(bdist_wheel):
    def get_tag(self):
        python, abi, platform = super().get_tag()
        # ctypes does not care for the version of Python; the backend for torch does.
        return (python, abi, platform) if torch_or_none() else ("py3", "none", platform)


class Binary(Distribution):
    def has_ext_modules(self):
        return True


setup(version=version(), distclass=Binary, cmdclass={"build_py": Build, "bdist_wheel": Wheel})
