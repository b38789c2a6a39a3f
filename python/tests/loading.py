"""What an import of the package says where libbrigade is missing, damaged or of another version.

    python tests/loading.py

Needs neither torch nor an installed brigade: the package's files are copied to a folder without the
library. On a machine where the system finds a libbrigade the first case is skipped.
"""

import ctypes.util
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

PACKAGE = pathlib.Path(__file__).resolve().parent.parent / "brigade"


class Loading(unittest.TestCase):
    def setUp(self):
        held = tempfile.TemporaryDirectory()
        self.addCleanup(held.cleanup)
        self.folder = pathlib.Path(held.name)
        left = shutil.ignore_patterns("*.so*", "__pycache__")
        shutil.copytree(PACKAGE, self.folder / "brigade", ignore=left)

    def refusal(self):
        """The last line of an import that fails."""
        run = subprocess.run(
            [sys.executable, "-c", "import brigade"], cwd=self.folder, text=True,
            env={"PATH": ""}, capture_output=True, timeout=60,
        )
        self.assertNotEqual(run.returncode, 0)
        return run.stderr.strip().splitlines()[-1]

    def says(self, line, *words):
        for word in ("ImportError: ", *words):
            self.assertIn(word, line)

    @unittest.skipIf(ctypes.util.find_library("brigade"), "the system has a libbrigade")
    def test_a_missing_library(self):
        beside = str(self.folder / "brigade" / "libbrigade.so.0")
        self.says(self.refusal(), beside, "LD_LIBRARY_PATH", "pip install", "ffi/install.sh")

    def test_a_damaged_library(self):
        (self.folder / "brigade" / "libbrigade.so.0").write_bytes(b"no library")
        self.says(self.refusal(), "is damaged or of another system", "pip install")


if __name__ == "__main__":
    unittest.main()
