import pickle

import numpy as np
import pytest

from luthier.data import Field, Parquet
from luthier.errors import DataError

pa = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")
TEXTS = [f"text {number} " * (number % 7) for number in range(50)]


def write(path, texts=TEXTS, **settings):
    table = pa.table({"text": texts, "label": list(range(len(texts)))})
    settings = {"row_group_size": 8, "write_page_checksum": True, **settings}
    parquet.write_table(table, path, **settings)
    return path


def test_reading(tmp_path):
    write(tmp_path / "b.parquet", TEXTS[30:])
    write(tmp_path / "a.parquet", TEXTS[:30])
    records = Parquet(f"{tmp_path}/*.parquet")
    assert len(records) == 50
    for index in np.random.default_rng(0).permutation(50):
        assert records[index]["text"] == TEXTS[index]
        assert records[index]["label"] == index % 30
    assert records.name(41).endswith("b.parquet: row 11")
    source = Field(records)
    assert list(source.read(0, 50)) == [text.encode() for text in TEXTS]
    assert pickle.loads(pickle.dumps(source))[49] == TEXTS[49].encode()


def test_only_the_columns_that_are_asked_for(tmp_path):
    records = Parquet(str(write(tmp_path / "a.parquet")), ("label",))
    assert records[3] == {"label": 3}
    with pytest.raises(DataError, match=r"no column 'txt' \(its columns: text, label\)"):
        len(Parquet(str(tmp_path / "a.parquet"), ("txt",)))


def test_flipped_bytes_are_found_and_named(tmp_path):
    path = write(tmp_path / "x.parquet", compression="none")
    whole = path.read_bytes()
    metadata = parquet.ParquetFile(path).metadata
    offset = metadata.row_group(2).column(0).data_page_offset
    problems = []
    for position in range(offset, offset + 60, 7):
        content = bytearray(whole)
        content[position] ^= 0x55
        path.write_bytes(bytes(content))
        records = Parquet(str(path))
        assert records[3]["text"] == TEXTS[3]
        try:
            assert records[17]["text"] == TEXTS[17]
        except DataError as error:
            problems.append(str(error))
    assert len(problems) >= 6
    place = "x.parquet: rows 16 to 23 (row group 2) are damaged"
    assert all(place in problem for problem in problems)


def test_what_is_no_such_file(tmp_path):
    (tmp_path / "a.parquet").write_bytes(b"plain text")
    (tmp_path / "b.parquet").write_bytes(b"plain text")
    with pytest.raises(DataError) as error:
        len(Parquet(f"{tmp_path}/*.parquet"))
    assert len(error.value.problems) == 2
