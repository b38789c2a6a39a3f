"""Runs the programs that docs/PYTHON.md shows of calls on buffers, each on two ranks.

    python tests/documented.py path/to/brigade
"""

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "PYTHON.md"

text = PAGE.read_text()
section = text[text.index("## Calls on buffers"):text.index("## torch.distributed")]
programs = re.findall(r"^```python\n(.*?)^```", section, re.DOTALL | re.MULTILINE)
assert len(programs) == 3, len(programs)
said = []
with tempfile.TemporaryDirectory() as folder:
    for number, program in enumerate(programs):
        path = Path(folder, f"program{number}.py")
        path.write_text(program)
        command = [sys.argv[1], "run", "-n", "2", "--", sys.executable, str(path)]
        environment = {**os.environ, "PYTHONUNBUFFERED": ""}
        ran = subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment)
        assert ran.returncode == 0, f"{program}\n{ran.stdout}{ran.stderr}"
        # Each rank's as a whole, as nothing is written before its end.
        said.append(sorted(ran.stdout.splitlines()))
assert said[0] == ["0 [0. 1.] 1.0", "1 [0. 1.] 1.0"], said[0]
assert said[1] == ["0 1", "1 0"], said[1]
assert said[2] == ["rank 0 of 3", "rank 1 of 3", "rank 2 of 3"], said[2]
print(f"{len(programs)} programs did what {PAGE.name} says")
