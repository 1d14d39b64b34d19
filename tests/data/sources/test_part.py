import pytest

from luthier.data import Documents, Part


def test_a_part_is_a_run_of_documents():
    source = Documents([f"{number}" for number in range(10)])
    part = Part(source, 3, 7)
    assert list(part.read(0, 4)) == [b"3", b"4", b"5", b"6"]
    assert list(part.read(2, 99)) == [b"5", b"6"]
    assert (part[0], part.name(0), len(part)) == (b"3", "document 4", 4)
    assert len(Part(source, 8)) == 2
    assert len(Part(source, 8, 99)) == 2
    assert len(Part(source, 12)) == 0
    for index in (-1, 4):
        with pytest.raises(IndexError):
            part[index]
