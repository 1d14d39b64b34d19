"""What others wrote into a run's folder is shown by every command, and moves no terminal."""

import json
import os
import pty
import re
import shutil
import sys
import threading

import pytest

from luthier import terminal
from luthier.cli import main

EVIL = (
    "\x1b]0;title\x07\x1b]8;;http://x\x1b\\link\x1b[38;5;213m\x1b[2J"
    "\x9b31m\x85\u202e\u2066\r\nFAKE line"
)
SHOWN = "\\x1b]0;title\\x07"


class _Terminal:
    """A pseudo terminal in the place of the standard output and error."""

    def __init__(self, monkeypatch):
        self._master, slave = pty.openpty()
        self._stream = os.fdopen(slave, "w", encoding="utf-8", errors="surrogateescape")
        self._read = bytearray()
        self._thread = threading.Thread(target=self._follow)
        self._thread.start()
        monkeypatch.setattr("sys.stdout", self._stream)
        monkeypatch.setattr("sys.stderr", self._stream)

    def _follow(self):
        try:
            while data := os.read(self._master, 4096):
                self._read += data
        except OSError:  # nobody has it open any more
            pass

    def close(self):
        self._stream.close()
        self._thread.join()
        os.close(self._master)
        return self._read.decode("utf-8", "surrogateescape").replace("\r\n", "\n")


@pytest.fixture
def hostile(trained, tmp_path, monkeypatch):
    """A project with a run that somebody shared, whose folder and records hold escapes."""
    project = tmp_path / "project"
    shutil.copytree(trained, project)
    (run,) = (project / "runs" / "tiny").iterdir()
    name = EVIL.replace("/", "")
    folder = project / "runs" / name / f"ab12{name}"
    folder.parent.mkdir()
    shutil.copytree(run, folder)
    status = json.loads((folder / "status.json").read_text())
    status |= {"status": EVIL, "message": EVIL, "metrics": {EVIL: 1.0}, "updated": 4e9}
    status["evaluations"] = {EVIL: {EVIL: 2.0}}
    (folder / "status.json").write_text(json.dumps(status))
    record = (folder / "config.json").read_text()
    assert '"tiny"' in record
    (folder / "config.json").write_text(record.replace('"tiny"', json.dumps(EVIL)))
    for path in folder.glob("*.json"):
        text = path.read_text().replace("trials/tiny.py", json.dumps(EVIL)[1:-1])
        path.write_text(text)
    monkeypatch.chdir(project)
    monkeypatch.delenv("NO_COLOR", raising=False)
    return run.name


@pytest.mark.parametrize(
    "words",
    [
        ("runs",),
        ("runs", "last"),
        ("runs", "last", "--goodput"),
        ("runs", "last", "RUN", "--diff"),
        ("diff", "run:RUN", "run:last", "--why"),
        ("diff", "run:RUN", "run:last", "trials.tiny"),
        ("diff", "run:RUN", "run:last", "--overrides"),
        ("show", "run:last", "--why"),
        ("show", "run:last", "--why", "name"),
        ("show", "run:last"),
        ("show", "run:last", "--to", "table"),
        ("show", "run:" + EVIL),
        (EVIL,),
        ("launch", "--cancel", EVIL),
    ],
    ids=lambda words: " ".join(words).replace(EVIL, "EVIL"),
)
def test_escapes_in_records_are_shown_and_not_obeyed(hostile, words, monkeypatch):
    shown = _Terminal(monkeypatch)
    main([word.replace("RUN", hostile) for word in words])
    text = shown.close()
    assert "38;5;213m" not in re.sub(r"\\x1b\[38;5;213m", "", text), "a colour of theirs"
    own = re.sub(r"\x1b\[[0-9;]*m", "", text)
    assert not [c for c in own if c in "\x1b\x07\x85\x9b\u202e\u2066\r\x7f"]
    assert not re.search("^FAKE", own, re.MULTILINE)
    if "--goodput" not in words:
        assert "\\x1b]0;t" in own


def test_the_terminal_of_the_command_line_is_a_barrier(monkeypatch):
    """What no table or message escaped does not reach it either; colours and live lines do."""
    shown = _Terminal(monkeypatch)
    terminal.protect()
    sys.stdout.write(f"{EVIL}\x1b[1;31mred\x1b[0m\x1b[2K\x1b[1A\n")
    text = shown.close()
    assert SHOWN in text
    assert "\\x1b]8;;" in text
    assert "\\x9b31m" in text
    assert "\\u202e" in text
    assert text.endswith("\x1b[1;31mred\x1b[0m\x1b[2K\x1b[1A\n")


def test_names_of_files_that_are_no_text():
    name = os.fsdecode(b"\x9b31m\xff")
    assert terminal.printable(name) == "\\udc9b31m\\udcff"
    assert terminal.cell("a\tb\nc") == "a\\tb\\nc"
    assert terminal.printable("a\tb\nc é 木 👩‍🔬") == "a\tb\nc é 木 👩‍🔬"


def test_bars_go_from_the_lowest_to_the_highest():
    assert terminal.sparkline([1.0, 2.0, 3.0]) == "▁▅█"
    assert terminal.sparkline([1.0, float("nan")]) == "▁"
    assert terminal.sparkline([]) == ""
    assert len(terminal.sparkline(list(range(99)), width=5)) == 5
