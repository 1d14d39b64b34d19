import numpy as np
import pytest
from array_record.python import array_record_module

from luthier.data import ArrayRecord, Filtered, Skip
from luthier.errors import DataError

RANDOM = np.random.default_rng(0)
DOCUMENTS = [RANDOM.bytes(number % 30 * 5 + 1) for number in range(120)]


def write(path, documents=DOCUMENTS, options="group_size:4"):
    writer = array_record_module.ArrayRecordWriter(str(path), options)
    for document in documents:
        writer.write(document)
    writer.close()
    return path


def flip(path, position):
    content = bytearray(path.read_bytes())
    content[position] ^= 0x55
    path.write_bytes(bytes(content))


def test_reading(tmp_path):
    write(tmp_path / "b.array_record", DOCUMENTS[70:])
    write(tmp_path / "a.array_record", DOCUMENTS[:70])
    source = ArrayRecord(f"{tmp_path}/*.array_record")
    assert len(source) == 120
    for index in np.random.default_rng(0).permutation(120):
        assert source[index] == DOCUMENTS[index]
    assert source.read(60, 90) == DOCUMENTS[60:90]
    assert source.name(71).endswith("b.array_record: record 1")


def problem_of(source, index):
    try:
        return DOCUMENTS[index] != source[index]
    except DataError as error:
        return str(error)


def test_a_flipped_byte_is_found_and_named(tmp_path):
    path = write(tmp_path / "x.array_record")
    whole = path.read_bytes()
    for position in range(110, 6000, 310):
        path.write_bytes(whole)
        flip(path, position)
        source = ArrayRecord(str(path))
        found = {i: problem_of(source, i) for i in range(120)}
        lost = {index: problem for index, problem in found.items() if problem}
        assert 1 <= len(lost) <= 4
        for index, problem in lost.items():
            assert f"x.array_record: record {index} is damaged" in problem


def test_skipping_what_is_damaged(tmp_path):
    path = write(tmp_path / "x.array_record")
    flip(path, 110)
    source = Filtered(ArrayRecord(str(path)), corrupt=Skip())
    assert list(source.read(0, len(source))) == DOCUMENTS[4:]
    assert source.verdict.counts == {"unreadable": 4, "kept": 116}
    assert [problem.what.split(" is ")[0] for problem in source.verdict.problems] == [
        f"{path}: record {index}" for index in range(4)
    ]
    with pytest.raises(DataError, match="more than 3 documents"):
        len(Filtered(ArrayRecord(str(path)), corrupt=Skip(at_most=3)))


def test_a_damaged_index_is_not_an_empty_file(tmp_path):
    path = write(tmp_path / "x.array_record")
    content = path.read_bytes()
    path.write_bytes(content[: len(content) - 65536] + bytes(65536))
    with pytest.raises(DataError, match=r"x\.array_record"):
        len(ArrayRecord(str(path)))


def test_what_is_no_such_file(tmp_path):
    (tmp_path / "x").write_bytes(b"plain text")
    with pytest.raises(DataError, match="x: "):
        len(ArrayRecord(str(tmp_path / "x")))
