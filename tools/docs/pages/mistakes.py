"""The page of mistakes and their messages: from the cases that the tests run."""

from __future__ import annotations

import shlex
import tomllib
from pathlib import Path
from typing import Any

TESTS = Path(__file__).resolve().parents[3] / "tests" / "end_to_end"

START = """\
# Mistakes

The named system silently accepts each of these mistakes. luthier prints one line and exits with
code 2; nothing is trained or written. The tests run these commands.
"""

CODE = """\
## Errors in your code

An exception in your own code is printed with the path of the node whose code raised it, the
innermost lines of your files, and the arguments of the call; arrays as JAX writes their types. The
exit code is 1, and `--debug` prints the whole traceback. In these examples, `my_parts` is a package
of the project.
"""


def render() -> str:
    """Return the page."""
    parts = [START]
    for case in _read("mistakes.toml")["mistake"]:
        lines = [f"$ luthier {shlex.join(case['words'])}", f"luthier: {case['says']}"]
        if "recorded" in case:
            lines.insert(0, f"# taken/config.json holds {case['recorded']}")
        answer = f"{case['accepted_by']}: {case['how']}."
        parts.append(f"## {case['mistake']}\n\n{answer}\n\n{_block(lines)}")
    parts.append(CODE)
    for case in _read("user_errors.toml")["case"]:
        command = shlex.join(["train", "configs.lm.quickstart", *case["overrides"]])
        lines = [f"$ luthier {command}", *(f"luthier: {line}" for line in case["lines"])]
        parts.append(f"### {case['name'].capitalize()}\n\n{_block(lines)}")
    return "\n".join(parts)


def _read(name: str) -> dict[str, Any]:
    return tomllib.loads((TESTS / name).read_text(encoding="utf-8"))


def _block(lines: list[str]) -> str:
    return "\n".join(["```text", *lines, "```", ""])
