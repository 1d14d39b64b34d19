import math

import pytest

from luthier.errors import RunError
from luthier.sweep.driver.journal import Journal, read_journal


def test_what_is_committed_is_read_again(tmp_path):
    journal = Journal(tmp_path / "journal.jsonl")
    journal.add("asked", setting=0, assignment={"rate": 1e-3})
    journal.add("ended", values=(math.inf, math.nan), reason="")
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
    journal.add("asked", setting=0)
    journal.close()
    with open(path, "ab") as file:
        file.write(b'{"kind":"told","sett')
    assert [line["kind"] for line in read_journal(path)] == ["asked"]
    journal = Journal(path)
    assert journal.mended == 20
    journal.add("told", setting=0)
    journal.close()
    assert [line["kind"] for line in read_journal(path)] == ["asked", "told"]


def test_a_file_of_one_torn_line_is_empty_afterwards(tmp_path):
    (tmp_path / "journal.jsonl").write_bytes(b'{"ki')
    journal = Journal(tmp_path / "journal.jsonl")
    journal.close()
    assert list(read_journal(journal.path)) == []


def test_there_are_no_lines_where_there_is_no_file(tmp_path):
    assert list(read_journal(tmp_path / "journal.jsonl")) == []


def test_damage_in_the_middle_is_told_with_its_line(tmp_path):
    path = tmp_path / "journal.jsonl"
    path.write_bytes(b'{"kind":"asked"}\n{"kind"\n{"kind":"told"}\n')
    with pytest.raises(RunError, match="is damaged in line 2"):
        list(read_journal(path))


def test_a_journal_that_cannot_be_written_is_told(tmp_path):
    with pytest.raises(RunError, match=r"cannot write .*No such file"):
        Journal(tmp_path / "absent" / "journal.jsonl")
