import dataclasses
import pickle

import pytest

from luthier.data.sources import Container, damaged, unopened
from luthier.errors import DataError


@dataclasses.dataclass(frozen=True)
class Letters(Container):
    """One letter a record; `?` is damaged, and a file that begins with `!` cannot be opened."""

    pattern: str

    def open(self, path):
        with open(path) as file:
            content = file.read()
        if content.startswith("!"):
            raise unopened(path, "bad start")
        return content, len(content)

    def record(self, reader, path, position):
        if reader[position] == "?":
            raise damaged(path, position, "a question")
        return reader[position].encode()


@pytest.fixture
def letters(tmp_path):
    for name, content in (("b", "de"), ("a", "abc"), ("c", "?g")):
        (tmp_path / f"{name}.txt").write_text(content)
    return Letters(f"{tmp_path}/*.txt")


def test_records_are_numbered_over_files(letters):
    assert len(letters) == 7
    assert b"".join(letters[i] for i in (0, 1, 2, 3, 4, 6)) == b"abcdeg"
    assert letters.name(4).endswith("b.txt: record 1")
    with pytest.raises(IndexError):
        letters[7]


def test_damage_names_file_and_position(letters):
    with pytest.raises(DataError, match=r"c\.txt: record 0 is damaged: a question"):
        letters.read(3, 7)


def test_open_files_do_not_travel(letters):
    assert len(letters) == 7
    copy = pickle.loads(pickle.dumps(letters))
    assert copy == letters
    assert set(vars(copy)) == {"pattern"}
    assert copy[6] == b"g"


def test_all_files_that_cannot_be_opened_at_once(letters, tmp_path):
    (tmp_path / "d.txt").write_text("!")
    (tmp_path / "e.txt").write_text("")
    with pytest.raises(DataError) as error:
        len(letters)
    assert ["d.txt" in str(error.value.problems[0]), "e.txt" in str(error.value.problems[1])] == [
        True,
        True,
    ]
