"""Classes and functions that users registered with gin are found."""

from __future__ import annotations

import pytest

from luthier.cli import main

PARTS = '''
import dataclasses

import gin


@gin.configurable("half", module="mine.parts")
def halved(rate, end=0.0):
    """Return half of a rate."""
    return rate / 2


@gin.configurable
@dataclasses.dataclass(frozen=True)
class OwnSchedule:
    """A schedule."""

    peak: float = 1.0

    def __call__(self, step):
        """Return the rate."""
        return self.peak
'''

GIN = """
import registered_parts

adamw.learning_rate = @OwnSchedule()
OwnSchedule.peak = @parts.half()
mine.parts.half.rate = %RATE
RATE = 0.5
"""


@pytest.fixture
def folder(importable_project):
    (importable_project / "registered_parts.py").write_text(PARTS)
    (importable_project / "own.gin").write_text(GIN)
    lines = '[tool.luthier]\npackages = ["trials", "registered_parts"]\n'
    (importable_project / "pyproject.toml").write_text(lines)
    return importable_project


@pytest.mark.usefixtures("folder")
def test_what_users_registered_is_found(capsys):
    assert main(["show", "trials.tiny", "--gin_file", "own.gin", "optimizer"]) == 0
    shown = capsys.readouterr().out.splitlines()
    start = shown.index("  learning_rate: registered_parts.OwnSchedule")
    assert shown[start + 1 : start + 3] == [
        "    peak: registered_parts.halved",
        "      rate = 0.5 (shared as RATE)",
    ]
    words = ["show", "trials.tiny", "--gin_file=own.gin", "--gin.half.rat=1"]
    assert main(words) == 2
    (line,) = capsys.readouterr().err.splitlines()
    message = "halved has no argument 'rat' [set by argument 2: gin_bindings:half.rat = 1]"
    assert line == f"luthier: {message}; did you mean rate?"
