"""What commands answer, for the pages of the manual that show them."""

from __future__ import annotations

import contextlib
import io
import os
import shlex
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def answered(command: str, files: Mapping[str, str]) -> str:
    """Return a command of luthier and what it prints, as a block of Markdown.

    Args:
      command: Its words behind `luthier`.
      files: Texts, by name, in the folder where it runs.
    """
    from luthier.cli import main

    output, before = io.StringIO(), os.getcwd()
    sys.path.insert(0, str(ROOT))
    try:
        with tempfile.TemporaryDirectory() as folder:
            os.chdir(folder)
            for name, text in files.items():
                Path(name).write_text(text, encoding="utf-8")
            with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
                main(shlex.split(command))
    finally:
        os.chdir(before)
        sys.path.remove(str(ROOT))
    lines = [line.rstrip() for line in output.getvalue().splitlines()]
    return "\n".join(["```text", f"$ luthier {command}", *lines, "```", ""])
