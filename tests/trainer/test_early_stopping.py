import math

from luthier.metrics import Selector
from luthier.program import EarlyStopping
from luthier.trainer import Patience


def _rule(direction="lower", patience=2, min_delta=0.0):
    return EarlyStopping(
        metric=Selector("held_out", "loss", direction), patience=patience, min_delta=min_delta
    )


def _over(rule, values):
    patience = Patience()
    return [patience.observe(rule, value, step) for step, value in enumerate(values)], patience


def test_it_stops_after_the_patience_is_over():
    over, patience = _over(_rule(), [3.0, 2.0, 2.5, 2.1])
    assert over == [False, False, False, True]
    assert (patience.best, patience.best_step) == (2.0, 1)


def test_an_improvement_starts_the_count_anew():
    assert _over(_rule(), [3.0, 3.1, 2.9, 3.0, 2.8])[0] == [False] * 5


def test_higher_is_better_where_the_metric_says_so():
    assert _over(_rule("higher"), [0.1, 0.2, 0.15, 0.19])[0][-1]
    assert not _over(_rule("higher"), [0.1, 0.2, 0.3, 0.4])[0][-1]


def test_an_improvement_below_min_delta_does_not_count():
    assert _over(_rule(min_delta=0.5), [3.0, 2.9, 2.8])[0] == [False, False, True]
    assert _over(_rule("higher", min_delta=0.5), [1.0, 1.4, 1.45])[0] == [False, False, True]


def test_nan_never_improves():
    over, patience = _over(_rule(), [3.0, math.nan, math.nan])
    assert over[-1]
    assert patience.best == 3.0


def test_the_fields_survive_a_checkpoint():
    for patience in (Patience(), Patience(1.5, 7, 2)):
        again = Patience.from_dict(patience.to_dict())
        assert again.to_dict() == patience.to_dict()
