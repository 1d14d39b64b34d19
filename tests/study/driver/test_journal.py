import errno
import math
import os

import pytest

from luthier.errors import RunError, VersionError
from luthier.storage import seal
from luthier.storage.json_lines import FORMAT
from luthier.study.driver import Journal, read_journal, require_whole


def test_what_is_committed_is_read_again(tmp_path):
    journal = Journal(tmp_path / "journal.jsonl")
    journal.add("asked", setting=0, trials=[0], words=[], assignment={"rate": 1e-3})
    ended = {"outcome": "complete", "values": (math.inf, math.nan), "reason": ""}
    journal.add("ended", trial=0, device_seconds=0.0, **ended)
    assert list(read_journal(journal.path)) == []
    journal.commit()
    first, second = read_journal(journal.path)
    assert (first["kind"], first["assignment"]) == ("asked", {"rate": 1e-3})
    assert second["values"][0] == math.inf
    assert math.isnan(second["values"][1])
    journal.close()


def test_a_torn_last_line_is_cut_off_and_the_next_one_is_whole(tmp_path):
    path = tmp_path / "journal.jsonl"
    journal = Journal(path)
    journal.add("asked", setting=0, trials=[0], words=[], assignment={})
    journal.close()
    with open(path, "ab") as file:
        file.write(b'{"kind":"told","sett')
    assert [line["kind"] for line in read_journal(path)] == ["asked"]
    journal = Journal(path)
    assert journal.mended == 20
    journal.add("noted", notice="")
    journal.close()
    assert [line["kind"] for line in read_journal(path)] == ["asked", "noted"]


def test_a_file_of_one_torn_line_is_empty_afterwards(tmp_path):
    (tmp_path / "journal.jsonl").write_bytes(b'{"ki')
    journal = Journal(tmp_path / "journal.jsonl")
    journal.close()
    assert list(read_journal(journal.path)) == []


def test_there_are_no_lines_where_there_is_no_file(tmp_path):
    assert list(read_journal(tmp_path / "journal.jsonl")) == []


def test_damage_is_left_out_and_a_driver_refuses_with_the_remedy(tmp_path):
    path = tmp_path / "journal.jsonl"
    journal = Journal(path)
    for notice in "abcd":
        journal.add("noted", notice=notice)
    journal.close()
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(lines[0] + b"\0" * 80 + b"\n" + lines[3])
    assert [line["notice"] for line in read_journal(path)] == ["a", "d"]
    with pytest.raises(RunError) as caught:
        require_whole(path)
    (problem,) = caught.value.problems
    assert "line 2 is damaged, 1 line is missing before line 3" in problem.what
    assert f"`luthier sweep repair {tmp_path}`" in problem.remedy


def test_a_disk_that_refuses_for_a_moment_leaves_every_line_once(tmp_path, monkeypatch):
    """The disk is full in the middle of a line, and then one fsync fails."""
    write, fsync = os.write, os.fsync
    faults = iter(["write", "write", "fsync", ""])
    fault = [next(faults)]

    def failing_write(descriptor, data):
        if fault[0] != "write":
            return write(descriptor, data)
        fault[0] = next(faults)
        write(descriptor, bytes(data)[:10])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def failing_fsync(descriptor):
        if fault[0] == "fsync":
            fault[0] = next(faults)
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        fsync(descriptor)

    journal = Journal(tmp_path / "journal.jsonl")
    journal.add("noted", notice="before")
    fault[0] = ""
    journal.commit()
    fault[0] = "write"
    monkeypatch.setattr(os, "write", failing_write)
    monkeypatch.setattr(os, "fsync", failing_fsync)
    journal.add("noted", notice="after")
    with pytest.raises(RunError, match="No space left"):
        journal.commit(patience_seconds=0.0)
    assert [line["notice"] for line in read_journal(journal.path)] == ["before"]
    require_whole(journal.path)
    journal.commit()
    journal.close()
    assert fault == [""]
    assert [line["notice"] for line in read_journal(journal.path)] == ["before", "after"]
    require_whole(journal.path)


def test_a_journal_of_a_later_version_is_refused(tmp_path):
    (tmp_path / "journal.jsonl").write_bytes(seal(b'{"kind":"noted","at":1}', 0, FORMAT + 1))
    with pytest.raises(VersionError, match=r"later luthier .*update luthier; nothing was changed"):
        require_whole(tmp_path / "journal.jsonl")


def test_a_journal_that_cannot_be_written_is_reported(tmp_path):
    with pytest.raises(RunError, match=r"cannot write .*No such file"):
        Journal(tmp_path / "absent" / "journal.jsonl")


ASKED = {"trials": [0], "words": [], "assignment": {}}
ENDED = {"trial": 0, "outcome": "complete", "reason": "", "device_seconds": 0.0, "values": [1.0]}


def _written(tmp_path, *lines):
    journal = Journal(tmp_path / "journal.jsonl")
    for kind, fields in lines:
        journal.add(kind, **fields)
    journal.close()
    return journal.path


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        ("asked", {"setting": 0} | ASKED | {"trials": "0"}),
        ("ended", ENDED | {"fault": 3}),
        ("ended", ENDED | {"values": "1.0"}),
        ("opened", {"slices": [{"index": "first"}]}),
        ("noted", {}),
    ],
)
def test_a_line_whose_fields_are_of_other_types_is_damage(tmp_path, kind, fields):
    path = _written(tmp_path, ("noted", {"notice": "a"}), (kind, fields))
    assert [line["kind"] for line in read_journal(path)] == ["noted"]
    with pytest.raises(RunError, match="line 2 is damaged"):
        require_whole(path)


@pytest.mark.parametrize(
    ("kind", "fields", "problem"),
    [
        ("asked", {"setting": 0} | ASKED, "setting 0 was asked before"),
        ("ended", ENDED, "trial 0 had ended before"),
        ("told", {"setting": 1}, "setting 1 was never asked"),
    ],
)
def test_a_line_that_contradicts_those_before_is_reported_and_left_out(
    tmp_path, kind, fields, problem
):
    first = [("asked", {"setting": 0} | ASKED), ("ended", ENDED)]
    path = _written(tmp_path, *first, (kind, fields))
    assert [line["kind"] for line in read_journal(path)] == ["asked", "ended"]
    with pytest.raises(RunError, match=f"line 3: {problem}"):
        require_whole(path)


def test_a_later_kind_of_line_is_let_pass(tmp_path):
    path = _written(tmp_path, ("noted", {"notice": "a"}), ("drawn", {"picture": "b"}))
    require_whole(path)
    assert [line["kind"] for line in read_journal(path)] == ["noted", "drawn"]


@pytest.mark.parametrize(
    ("setting", "line"),
    [(1, "the line of 1 setting is lost before setting 1"), (3, "3 lines of settings are lost")],
)
def test_settings_whose_lines_are_lost_are_counted(tmp_path, setting, line):
    later = {"setting": setting} | ASKED | {"trials": [setting]}
    path = _written(tmp_path, ("asked", later))
    found = [one["setting"] for one in read_journal(path)]
    assert found == list(range(setting + 1))
    with pytest.raises(RunError, match=line):
        require_whole(path)
