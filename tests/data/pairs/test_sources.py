import pytest

from luthier.data import Decoded, Documents, JsonObject, PairFields, PreferenceFields
from luthier.errors import DataError

RECORDS = Decoded(
    Documents(['{"en": "a", "fr": "b"}', '{"prompt": "p", "chosen": "c", "rejected": "r"}']),
    JsonObject(),
)


def test_fields_of_records():
    pairs = PairFields(RECORDS, "en", "fr")
    assert (len(pairs), pairs[0], pairs.name(1)) == (2, (b"a", b"b"), "document 2")
    assert PreferenceFields(RECORDS)[1] == (b"p", b"c", b"r")
    with pytest.raises(DataError, match="document 2: no field 'en'"):
        pairs[1]
    with pytest.raises(DataError, match="document 1: no field 'prompt'"):
        PreferenceFields(RECORDS)[0]
