"""The page of mistakes that other systems accept: from the cases that the tests run."""

from __future__ import annotations

import shlex
import tomllib
from pathlib import Path

CASES = Path(__file__).resolve().parents[3] / "tests" / "end_to_end" / "mistakes.toml"

START = """\
# Mistakes

The named system silently accepts each of these mistakes. luthier prints one line and exits with
code 2; nothing is trained or written. The tests run these commands.
"""


def render() -> str:
    """Return the page."""
    parts = [START]
    for case in tomllib.loads(CASES.read_text(encoding="utf-8"))["mistake"]:
        lines = [f"$ luthier {shlex.join(case['words'])}", f"luthier: {case['says']}"]
        if "recorded" in case:
            lines.insert(0, f"# taken/config.json holds {case['recorded']}")
        text = "\n".join(lines)
        answer = f"{case['accepted_by']}: {case['how']}."
        parts.append(f"## {case['mistake']}\n\n{answer}\n\n```text\n{text}\n```\n")
    return "\n".join(parts)
