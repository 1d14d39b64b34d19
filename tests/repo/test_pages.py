"""The manual's generated pages are what their sources say."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.full
def test_generated_pages_are_up_to_date(root):
    command = [sys.executable, "tools/docs/update_pages.py", "--check"]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
