"""Puts libbrigade into the package, and the backend for the torch that is installed, if one is.

    pip install --no-build-isolation ./python

Needs cargo; with torch also a C++20 compiler ($CXX, or c++). BRIGADE_LIBRARY names a libbrigade.so
that has been built already. Where torch cannot be imported the package comes without a backend for
it.
"""

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


def compile_backend(torch, package):
    """The C++ of c10d/ as an extension module, named after the torch that it fits."""
    from torch.utils import cpp_extension

    name = "_torch_{}_{}".format(*torch.__version__.split(".")[:2])
    includes = cpp_extension.include_paths() + [sysconfig.get_paths()["include"]]
    subprocess.run(
        [
            os.environ.get("CXX", "c++"), "-std=c++20", "-O2", "-fPIC", "-shared", "-Wall",
            "-fvisibility=hidden", f"-DTORCH_EXTENSION_NAME={name}", f"-I{ROOT / 'include'}",
            *[f"-isystem{path}" for path in includes],
            PYTHON / "c10d" / "all.cpp",
            "-o", package / (name + sysconfig.get_config_var("EXT_SUFFIX")),
            package / "libbrigade.so.0", "-Wl,-rpath,$ORIGIN",
            *[f"-L{path}" for path in cpp_extension.library_paths()],
            "-ltorch_python", "-ltorch_cpu", "-ltorch", "-lc10",
        ],
        check=True,
    )


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
            compile_backend(torch, package)


class Wheel(bdist_wheel):
    def get_tag(self):
        python, abi, platform = super().get_tag()
        # ctypes does not care for the version of Python; the backend for torch does.
        return (python, abi, platform) if torch_or_none() else ("py3", "none", platform)


class Binary(Distribution):
    def has_ext_modules(self):
        return True


setup(version=version(), distclass=Binary, cmdclass={"build_py": Build, "bdist_wheel": Wheel})
