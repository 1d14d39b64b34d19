"""What the page on reliability tells people to type is taken; tests that pages name are there."""

import itertools
import re
import shlex
from pathlib import Path

import pytest
from injecting import injections
from staging import EVERY

from luthier import graph as graphs
from luthier.folders import manual_pages

PAGE = Path(manual_pages()["reliability"])
ROOT = Path(__file__).resolve().parents[2]
COMMANDS = re.findall(r"^\$ luthier train (.*)$", PAGE.read_text(), re.MULTILINE)


@pytest.mark.parametrize("command", COMMANDS)
def test_the_commands_are_valid(command):
    reference, *words = shlex.split(command)
    overrides = [word for word in words if re.match(r"[a-z_.]+:?=", word)]
    assert overrides
    graph = graphs.apply(graphs.resolve(reference), overrides)
    graphs.validate(graph)


@pytest.mark.parametrize("page", ["reliability", "security"])
def test_the_tests_of_its_promises_are_there(page):
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", Path(manual_pages()[page]).read_text())
    assert len(named) > 20
    for path, name in named:
        assert f"\ndef {name}(" in (ROOT / path).read_text(), f"{path}::{name}"


def test_there_are_some():
    assert len(COMMANDS) >= 5


def test_the_table_has_every_fault_and_no_failure():
    rows = [line.strip("| ").split(" | ") for line in PAGE.read_text().splitlines() if "|" in line]
    first = next(index for index, row in enumerate(rows) if row[0] == "fault") + 2
    found = {}
    rows = itertools.takewhile(lambda row: len(row) == 6, rows[first:])  # other tables follow
    for fault, processes, detected, _, lost, _ in rows:
        # Back to the newest committed save, which is the one before while the next is under way.
        assert int(lost) <= 2 * EVERY
        assert not detected.startswith(("FAILED", "cannot be staged"))
        found.setdefault(fault, []).extend(map(int, processes.split(", ")))
    assert found == {injection.fault: list(injection.processes) for injection in injections()}
