import io

import numpy as np
import pytest

from luthier.data import Classification, Decoded, Documents, RecordExamples
from luthier.errors import DataError

PIXELS = np.random.default_rng(0).integers(0, 256, (6, 4, 5, 1), np.uint8)


def records(make, count=6):
    """Records whose bytes are their number."""
    return Decoded(Documents([f"{number}" for number in range(count)]), lambda b: make(int(b)))


def encoded(number):
    image = pytest.importorskip("PIL.Image")
    buffer = io.BytesIO()
    image.fromarray(PIXELS[number, :, :, 0]).save(buffer, "png")
    return buffer.getvalue()


@pytest.mark.parametrize(
    "value",
    [
        lambda n: PIXELS[n],
        encoded,
        lambda n: {"bytes": encoded(n), "path": None},
        lambda n: (PIXELS[n] / 255).tolist(),
    ],
    ids=["array", "bytes", "dict", "lists"],
)
def test_inputs_and_labels(value):
    source = RecordExamples(records(lambda n: {"image": value(n), "label": n % 3}), (4, 5, 1), 3)
    assert source.labels.tolist() == [0, 1, 2, 0, 1, 2]
    found = source.inputs(np.array([5, 0]))
    np.testing.assert_allclose(found, PIXELS[[5, 0]] / 255, rtol=1e-6)
    (batch,) = Classification(source).batches(global_batch_size=6)
    np.testing.assert_allclose(batch["inputs"], PIXELS / 255, rtol=1e-6)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda n: {"image": PIXELS[n], "label": n}, "document 4: label 3; there are 3 classes"),
        (lambda n: {"image": PIXELS[n]}, "document 1: no field 'label'"),
        (lambda n: {"image": PIXELS[n, :2], "label": 0}, r"document 1: .* shape \(2, 5, 1\)"),
    ],
)
def test_records_that_do_not_fit(make, message):
    source = RecordExamples(records(make), (4, 5, 1), 3)
    with pytest.raises(DataError, match=message):
        source.digest  # noqa: B018


def test_the_digest_is_of_labels_and_inputs():
    def digest(shift, label):
        made = records(lambda n: {"image": PIXELS[n] ^ shift, "label": label})
        return RecordExamples(made, (4, 5, 1), 3).digest

    assert digest(0, 0) == digest(0, 0)
    assert len({digest(0, 0), digest(1, 0), digest(0, 1)}) == 3


def test_a_damaged_image_is_named():
    pytest.importorskip("PIL.Image")
    source = RecordExamples(records(lambda n: {"image": b"none", "label": 0}), (4, 5, 1), 3)
    with pytest.raises(DataError, match="document 3: not an image that can be read"):
        source.inputs(np.array([2]))
