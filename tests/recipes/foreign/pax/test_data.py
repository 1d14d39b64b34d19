import pytest

from luthier import data as datasets
from luthier.recipes.foreign.pax.data import batch_size, data


@pytest.fixture
def nodes(dump):
    return lambda name, **changes: dump(name, **changes).datasets


def test_c4_is_known(nodes):
    found = data(nodes("c4"), 48)
    assert found.training.__fn_or_cls__ is datasets.Packed
    assert found.training.length == 16
    assert found.validation.__fn_or_cls__ is datasets.Pretokenized


def test_synthetic_rows_are_known(nodes):
    found = nodes("gpt")
    known = data(found, 48)
    assert dict(known.training.__arguments__) == {"vocab_size": 48, "length": 16}
    assert known.validation.seed == 1
    assert batch_size(found) == 4
    assert not found[0].dump.leftovers


def test_other_data_is_reported(node):
    found = node("SeqIOInput", is_training=True, mixture_name="my_mixture", batch_size=8)
    found.dump.datasets = [found]
    assert data([found], 48).training is None
    (leftover,) = found.dump.leftovers
    assert (leftover.field, leftover.value) == ("mixture_name", "my_mixture")
    assert leftover.why == "such data is not known here; set data"
    assert batch_size([found]) == 8


def test_rows_of_all_hosts(node):
    found = node("SeqIOInput", is_training=True, batch_size=8, num_infeed_hosts=4)
    assert batch_size([found]) == 32
    assert batch_size([]) is None
