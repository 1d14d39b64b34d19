"""What the page on reliability tells people to type is taken."""

import re
import shlex
from pathlib import Path

import pytest

import luthier
from luthier import graph as graphs

PAGE = Path(luthier.__file__).parent / "pages" / "reliability.md"
COMMANDS = re.findall(r"^\$ luthier train (.*)$", PAGE.read_text(), re.MULTILINE)


@pytest.mark.parametrize("command", COMMANDS)
def test_the_commands_are_valid(command):
    reference, *words = shlex.split(command)
    overrides = [word for word in words if re.match(r"[a-z_.]+:?=", word)]
    assert overrides
    graph = graphs.apply(graphs.resolve(reference), overrides)
    graphs.validate(graph)


def test_there_are_some():
    assert len(COMMANDS) >= 5
