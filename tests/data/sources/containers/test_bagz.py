import numpy as np
import pytest

from luthier.data import Bagz
from luthier.errors import DataError

bagz = pytest.importorskip("bagz")
DOCUMENTS = [f"record {number} ".encode() * (number % 30 + 1) for number in range(120)]


def write(path, documents=DOCUMENTS):
    with bagz.Writer(str(path)) as writer:
        for document in documents:
            writer.write(document)
    return path


@pytest.mark.parametrize("ending", ["bagz", "bag"])
def test_reading(tmp_path, ending):
    write(tmp_path / f"b.{ending}", DOCUMENTS[70:])
    write(tmp_path / f"a.{ending}", DOCUMENTS[:70])
    source = Bagz(f"{tmp_path}/*.{ending}")
    assert len(source) == 120
    for index in np.random.default_rng(0).permutation(120):
        assert source[index] == DOCUMENTS[index]
    assert source.name(71).endswith(f"b.{ending}: record 1")


def test_flipped_bytes_are_named_where_a_record_no_longer_decompresses(tmp_path):
    path = write(tmp_path / "x.bagz")
    whole = path.read_bytes()
    problems = []
    for position in range(0, 3000, 50):
        content = bytearray(whole)
        content[position] ^= 0x55
        path.write_bytes(bytes(content))
        source = Bagz(str(path))
        for index in range(len(DOCUMENTS)):
            try:
                source[index]
            except DataError as error:
                problems.append((index, str(error)))
    assert len(problems) > 30
    assert all(f"x.bagz: record {index} is damaged" in problem for index, problem in problems)


def test_a_file_that_is_cut_off(tmp_path):
    path = write(tmp_path / "x.bagz")
    path.write_bytes(path.read_bytes()[:-3])
    source = Bagz(str(path))
    with pytest.raises(DataError, match=r"x\.bagz"):
        source.read(0, 120)
