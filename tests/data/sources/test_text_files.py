import pickle

import pytest

from luthier.data import TextFiles
from luthier.data.sources import blocks
from luthier.errors import DataError


def test_one_document_a_file_in_sorted_order(tmp_path):
    for name in ("b", "a", "c"):
        (tmp_path / f"{name}.txt").write_bytes(name.encode() + b"\r\n\xff")
    source = TextFiles(f"{tmp_path}/*.txt")
    assert list(source) == [b"a\r\n\xff", b"b\r\n\xff", b"c\r\n\xff"]
    assert [source.name(i) for i in range(3)] == [f"{tmp_path}/{n}.txt" for n in "abc"]


def test_construction_reads_nothing():
    source = TextFiles("/no/such/*.txt")
    assert source == TextFiles("/no/such/*.txt")
    assert pickle.loads(pickle.dumps(source)) == source
    with pytest.raises(DataError, match="no file matches"):
        len(source)


def test_every_unusable_file_is_named(tmp_path):
    (tmp_path / "a.txt").write_text("fine")
    (tmp_path / "b.txt").touch()
    (tmp_path / "c.txt").symlink_to(tmp_path / "gone")
    with pytest.raises(DataError) as error:
        list(blocks(TextFiles(f"{tmp_path}/*.txt")))
    first, second = error.value.problems
    assert "b.txt: the file is empty" in str(first)
    assert "c.txt: cannot be read" in str(second)
