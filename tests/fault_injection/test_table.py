"""The program that plays the injections prints one table, whatever comes of them."""

import importlib.util
from pathlib import Path

import injecting
import machine
import pytest
from injecting import Injection, Unstageable
from staging import Outcome

TOOL = Path(__file__).resolve().parents[2] / "tools" / "inject_faults.py"


@pytest.fixture
def tool(monkeypatch, tmp_path):
    """Return the program, with injections that need no processes."""
    spec = importlib.util.spec_from_file_location("drill_tool", TOOL)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)

    class NoMachine:
        def __init__(self, folder):
            pass

        def __enter__(self):
            return self

        def __exit__(self, *unused):
            pass

    def good(stage, truths):
        return Outcome("exit code 75", 1.26, 0, "bit-identical")

    def bad(stage, truths):
        raise AssertionError("exit code 1, not 75\nand more")

    def impossible(stage, truths):
        raise Unstageable("needs root")

    injections = [Injection("SIGTERM", (1, 2), good), Injection("a fault", (1,), bad)]
    injections.append(Injection("a full disk", (2,), impossible))
    monkeypatch.setattr(injecting, "injections", lambda: iter(injections))
    monkeypatch.setattr(machine, "Machine", NoMachine)
    return module


def test_all_outcomes_are_rows_and_a_failure_is_the_exit_code(tool, capsys):
    assert tool.main(["--markdown"]) == 1
    assert capsys.readouterr().out.splitlines() == [
        "| fault | processes | detected how | in seconds | steps lost | after the restart |",
        "| --- | --- | --- | --- | --- | --- |",
        "| SIGTERM | 1 | exit code 75 | 1.3 | 0 | bit-identical |",
        "| SIGTERM | 2 | exit code 75 | 1.3 | 0 | bit-identical |",
        "| a fault | 1 | FAILED: AssertionError: exit code 1, not 75 |  |  |  |",
        "| a full disk | 2 | cannot be staged here: needs root |  |  |  |",
    ]


def test_drills_are_chosen_by_word_and_number(tool, capsys):
    assert tool.main(["--only", "SIGTERM", "--processes", "2"]) == 0
    head, row = capsys.readouterr().out.splitlines()
    assert head.split()[:2] == ["fault", "processes"]
    assert row.split() == ["SIGTERM", "2", "exit", "code", "75", "1.3", "0", "bit-identical"]
    assert tool.main(["--list", "--only", "disk"]) == 0
    assert capsys.readouterr().out == "impossible-2: a full disk\n"


def test_a_row_for_each_fault_has_the_most_of_its_cases(tool, capsys):
    assert tool.main(["--brief", "--markdown", "--only", "SIGTERM", "disk"]) == 0
    assert capsys.readouterr().out.splitlines()[2:] == [
        "| SIGTERM | 1, 2 | exit code 75 | 1.3 | 0 | bit-identical |",
        "| a full disk | 2 | cannot be staged here: needs root |  |  |  |",
    ]
    rows = [("a", "1", "seen", "9.5", "10", "same"), ("a", "2", "seen", "12.0", "9", "same")]
    assert tool.brief(rows) == [("a", "1, 2", "seen", "12.0", "10", "same")]


def test_what_passed_is_kept_and_not_played_again(tool, capsys, tmp_path):
    kept = tmp_path / "rows.jsonl"
    assert tool.main(["--keep", str(kept), "--processes", "1"]) == 1
    first = capsys.readouterr()
    assert len(first.err.splitlines()) == 2
    assert tool.main(["--keep", str(kept), "--processes", "1"]) == 1
    second = capsys.readouterr()
    assert [line.split(" | ")[0] for line in second.err.splitlines()] == ["a fault"]
    assert second.out == first.out
