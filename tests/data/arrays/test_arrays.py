import numpy as np
import pytest

from luthier.data import Arrays
from luthier.errors import DataError

INPUTS = np.arange(24, dtype=np.float64).reshape(4, 3, 2)


def test_arrays_given_as_they_are():
    source = Arrays(INPUTS, [0, 1, 1, 0])
    assert source.shape == (3, 2)
    assert source.labels.tolist() == [0, 1, 1, 0]
    assert source.labels.dtype == np.int32
    found = source.inputs(np.array([2, 0]))
    np.testing.assert_array_equal(found, INPUTS[[2, 0]])
    assert found.dtype == np.float32


def test_different_data_has_different_digests():
    digests = {
        Arrays(INPUTS, [0, 1, 1, 0]).digest,
        Arrays(INPUTS + 1, [0, 1, 1, 0]).digest,
        Arrays(INPUTS, [0, 1, 1, 1]).digest,
        Arrays(INPUTS.reshape(4, 6), [0, 1, 1, 0]).digest,
    }
    assert len(digests) == 4
    assert Arrays(INPUTS.copy(), [0, 1, 1, 0]).digest in digests


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ([0, 1], "4 inputs and 2 labels"),
        ([0, 1, 2, 0], "there are 2 classes"),
        ([-1] * 4, "-1"),
        ([0.2, 1.9, 0.0, 1.0], r"labels are float64\[4\], not whole numbers"),
        ([[0, 1]] * 4, r"labels are int64\[4,2\]"),
    ],
)
def test_labels_that_do_not_fit(labels, message):
    with pytest.raises(DataError, match=message):
        Arrays(INPUTS, labels).labels  # noqa: B018
