"""The Python of the README runs as it is printed, in an empty folder."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
def test_the_python_of_the_readme_runs_as_printed(tmp_path):
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"^```python\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)
    (tmp_path / "session.py").write_text(code)
    # As from the wheel: nothing of the clone is on the path but the package.
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "framework"), "WANDB_MODE": "offline"}
    command = [sys.executable, "session.py"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "finished at step 60" in done.stdout
    assert "  ━━ plays/" in done.stdout
    assert "~ num_layers: 2 -> 4 (x2)" in done.stdout
