import numpy as np
import pytest

from luthier.data import Arithmetic, Bytes, Preferences, WithArrays
from luthier.errors import DataError

INNER = Preferences(Arithmetic(30), Bytes(), 16, num_threads=0)
NAMES = ("chosen_log_probabilities", "rejected_log_probabilities")
NUMBERS = np.random.default_rng(0).normal(size=(2, 30)).astype(np.float32)


@pytest.fixture
def path(tmp_path):
    np.savez(tmp_path / "x.npz", **dict(zip(NAMES, NUMBERS, strict=True)))
    return str(tmp_path / "x.npz")


def test_every_example_has_its_numbers(path):
    data = WithArrays(INNER, path, NAMES, num_threads=0)
    expected = data.batch_spec(8)
    batches = list(data.batches(global_batch_size=8))
    first, inner = (next(node.iterator(global_batch_size=8, seed=1)) for node in (data, INNER))
    np.testing.assert_array_equal(first["examples"], inner["examples"])
    for batch in (*batches, first):
        assert {name: (a.shape, a.dtype) for name, a in batch.items()} == expected
        for name, numbers in zip(NAMES, NUMBERS, strict=True):
            for example, number in zip(batch["examples"], batch[name], strict=True):
                assert number == (numbers[example - 1] if example else 0)
    assert data.describe()["means"][NAMES[0]] == pytest.approx(NUMBERS[0].mean(), rel=1e-5)
    assert data.rows.digest != INNER.rows.digest


def test_files_that_do_not_fit(path, tmp_path):
    with pytest.raises(DataError, match="no array 'more'"):
        WithArrays(INNER, path, (*NAMES, "more")).num_rows  # noqa: B018
    with pytest.raises(DataError, match=r"is \(30,\), not \(29,\)"):
        WithArrays(Preferences(Arithmetic(29), Bytes(), 16), path, NAMES).num_rows  # noqa: B018
    (tmp_path / "x.npz").write_bytes(b"plain")
    with pytest.raises(DataError, match="cannot be read"):
        WithArrays(INNER, path, NAMES).num_rows  # noqa: B018
