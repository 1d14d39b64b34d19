"""The manual's generated pages are what their sources say."""

from __future__ import annotations

import subprocess
import sys

import jax
import pytest


# The pages show the options that `quick_compile` sets, which are those of one JAX.
@pytest.mark.skipif(not jax.__version__.startswith("0.10."), reason="the pages are of jax 0.10")
@pytest.mark.full
def test_generated_pages_are_up_to_date(root):
    command = [sys.executable, "tools/docs/update_pages.py", "--check"]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
