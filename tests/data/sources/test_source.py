import pytest

from luthier.data import Documents, Source
from luthier.data.sources import blocks
from luthier.errors import DataError, Problem


class Broken(Source):
    """Every document in `bad` cannot be read."""

    def __init__(self, size, bad):
        self.size, self.bad = size, bad

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        if index in self.bad:
            raise DataError(Problem(f"document {index} is bad"))
        return b"x"

    def name(self, index):
        return str(index)


def test_blocks_give_every_document_once_in_order():
    documents = [bytes([i % 251]) * (i % 7) for i in range(9000)]
    given = [(start, list(block)) for start, block in blocks(Documents(documents))]
    assert [document for _, block in given for document in block] == documents
    assert all(documents[start] == block[0] for start, block in given)
    assert len(given) < 20


def test_blocks_of_large_documents_are_small():
    documents = [b"x" * (2 << 20)] * 12
    assert max(len(block) for _, block in blocks(Documents(documents))) <= 4


def test_all_bad_documents_are_reported_at_once():
    with pytest.raises(DataError) as error:
        list(blocks(Broken(1000, {3, 500, 999})))
    assert [p.what for p in error.value.problems] == [
        "document 3 is bad",
        "document 500 is bad",
        "document 999 is bad",
    ]


def test_a_long_list_of_problems_is_cut():
    with pytest.raises(DataError) as error:
        list(blocks(Broken(100_000, range(100_000))))
    assert len(error.value.problems) == 20 + 1
    assert "only the first 20" in error.value.problems[-1].what


def test_no_documents_is_an_error():
    with pytest.raises(DataError, match="no documents"):
        list(blocks(Documents([])))
