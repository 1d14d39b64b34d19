"""The public names of every room, frozen: a change of the interface shows in review."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.full
def test_public_names_are_the_recorded_ones(root):
    tool = root / "tools" / "goldens" / "public_names.py"
    done = subprocess.run([sys.executable, str(tool), "--check"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr[-4000:]
