import pytest

from luthier.durations import Epochs, Progress, Seconds, Steps, Tokens

PROGRESS = Progress(steps=3, tokens=700, epochs=0.5, seconds=9.0)


@pytest.mark.parametrize(
    ("duration", "measured"),
    [(Steps(1), 3), (Tokens(1), 700), (Epochs(1), 0.5), (Seconds(1), 9.0)],
)
def test_every_unit_measures_its_own(duration, measured):
    assert duration.measure(PROGRESS) == measured


@pytest.mark.parametrize("count", [0, -1, float("nan"), float("inf")])
@pytest.mark.parametrize("kind", [Steps, Tokens, Epochs, Seconds])
def test_a_count_that_is_no_length_is_refused(kind, count):
    with pytest.raises(ValueError, match=kind.__name__):
        kind(count)
