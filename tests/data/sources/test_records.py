import pytest

from luthier.data import Decoded, Documents, Field, JsonObject
from luthier.errors import DataError


def test_fields_of_decoded_records():
    source = Documents(['{"text": "é", "n": 1}', '{"text": 1}', "[1]", '{"txt": "x"}'])
    records = Decoded(source, JsonObject())
    field = Field(records)
    assert len(field) == len(records) == 4
    assert records[0] == {"text": "é", "n": 1}
    assert field[0] == "é".encode()
    with pytest.raises(DataError, match="document 2: field 'text' is not text but int"):
        field[1]
    with pytest.raises(DataError, match="document 3 cannot be decoded: not a JSON object"):
        field[2]
    with pytest.raises(DataError, match=r"document 4: no field 'text' .*did you mean txt"):
        field[3]
    with pytest.raises(IndexError):
        records[4]


def test_bytes_are_taken_as_they_are():
    records = Decoded(Documents([b"\xff"]), lambda record: {"text": record})
    assert Field(records)[0] == b"\xff"
