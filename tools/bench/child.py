"""Measurements in processes of their own, which tell what they found as JSON in their last line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]


def result_of(
    code: str,
    words: Sequence[str] = (),
    variables: Mapping[str, str] | None = None,
    pin: Sequence[str] = (),
) -> Any:
    """Return what a process printed last, read as JSON.

    Args:
      code: What it runs; luthier, and the tools as `tools.bench.step`, can be imported.
      words: Its arguments.
      variables: Its whole environment; None is that of this process.
      pin: What stands before the interpreter, such as `taskset -c 0`.

    Raises:
      RuntimeError: It failed; with what it wrote to its standard error.
    """
    path = os.pathsep.join([str(ROOT), str(ROOT / "framework")])
    environment = {**(os.environ if variables is None else variables), "PYTHONPATH": path}
    command = [*pin, sys.executable, "-c", code, *words]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(done.stderr)
    return json.loads(done.stdout.splitlines()[-1])
