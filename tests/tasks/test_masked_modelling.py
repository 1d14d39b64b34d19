import jax
import jax.numpy as jnp
import numpy as np
import pytest

from luthier.metrics import ACCURACY, LOSS, NATS_PER_TOKEN
from luthier.tasks import MaskedModelling

V, D, L, MASK, SEPARATOR = 50, 6, 40, 3, 7


class Bag:
    """Sees every token of a row, as an encoder does."""

    def __init__(self, table):
        self.table = table

    def hidden(self, inputs_BL, *, positions_BL, segments_BL, dropout=None):
        hidden_BLD = self.table[inputs_BL]
        hidden_BLD = hidden_BLD + hidden_BLD.mean(1, keepdims=True)
        return hidden_BLD if dropout is None else hidden_BLD * (dropout.uniform((D,)) < 0.5)

    def logits(self, hidden_BLD):
        return hidden_BLD @ self.table.T


def table():
    return jax.random.normal(jax.random.key(0), (V, D))


def batch(rows=4, seed=0):
    generator = np.random.default_rng(seed)
    inputs = generator.integers(4, V, (rows, L), np.int32)
    weights = np.ones((rows, L), np.float32)
    weights[:, -5:] = 0
    return {
        "inputs": inputs,
        "weights": weights,
        "segments": (weights > 0).astype(np.int32),
        "positions": np.broadcast_to(np.arange(L, dtype=np.int32), (rows, L)),
        "documents": np.broadcast_to(np.arange(1, rows + 1, dtype=np.int32)[:, None], (rows, L)),
    }


def task(**settings):
    return MaskedModelling(mask_token=MASK, vocab_size=V, **settings)


def test_shares_of_fates():
    values = batch(rows=600)
    seen, chosen = task().hide(values, jax.random.key(0))
    seen, chosen, inputs = np.asarray(seen), np.asarray(chosen), values["inputs"]
    assert chosen.mean() == pytest.approx(0.15, abs=0.01)
    np.testing.assert_array_equal(seen[~chosen], inputs[~chosen])
    masked = (seen == MASK)[chosen].mean()
    same = (seen == inputs)[chosen].mean()
    assert masked == pytest.approx(0.8 + 0.1 / V, abs=0.02)
    assert same == pytest.approx(0.1 + 0.1 / V, abs=0.02)
    random = seen[chosen & (seen != MASK) & (seen != inputs)]
    assert set(random.tolist()) >= set(range(4, V))


def test_masks_belong_to_tokens_and_not_to_places():
    values, key = batch(), jax.random.key(1)
    seen, chosen = task().hide(values, key)
    order = np.array([2, 0, 3, 1])
    moved = {name: x[order][:, ::-1] for name, x in values.items()}
    seen_again, chosen_again = task().hide(moved, key)
    np.testing.assert_array_equal(seen_again, np.asarray(seen)[order][:, ::-1])
    np.testing.assert_array_equal(chosen_again, np.asarray(chosen)[order][:, ::-1])
    assert not np.array_equal(chosen, task().hide(values, jax.random.key(2))[1])


def test_exempt_tokens_are_never_chosen():
    values = batch(rows=50)
    values["inputs"][:, ::3] = SEPARATOR
    _, chosen = task(rate=0.9, exempt=(SEPARATOR,)).hide(values, jax.random.key(0))
    assert not chosen[values["inputs"] == SEPARATOR].any()
    assert np.asarray(chosen).any()


@pytest.mark.full
def test_counts_chosen_tokens_alone():
    values = batch()
    ratios = task().evaluate(Bag(table()), values)
    key = jax.random.fold_in(jax.random.key(0), 0)
    seen, chosen = task().hide(values, key)
    counted = np.asarray(chosen) & (values["weights"] > 0)
    model = Bag(table())
    logits = model.logits(model.hidden(seen, positions_BL=None, segments_BL=None))
    logits = np.asarray(logits, np.float64)
    log_p = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    nats = -np.take_along_axis(log_p, values["inputs"][..., None], -1)[..., 0]
    assert NATS_PER_TOKEN.value(ratios[NATS_PER_TOKEN]) == pytest.approx(
        nats[counted].mean(), rel=1e-5
    )
    right = logits.argmax(-1) == values["inputs"]
    assert ACCURACY.value(ratios[ACCURACY]) == pytest.approx(right[counted].mean())


def test_evaluation_always_hides_the_same():
    values, model = batch(), Bag(table())
    first, again = (task().evaluate(model, values)[LOSS].host() for _ in range(2))
    assert first == again
    assert task(evaluation_seed=1).evaluate(model, values)[LOSS].host() != first
    assert task().loss(model, values, None).loss.host() == first


@pytest.mark.full
def test_parts_of_a_batch_add_up_to_its_gradient():
    values, key = batch(), jax.random.key(3)

    @jax.jit
    def gradient(table, values):
        return jax.grad(lambda t: task().loss(Bag(t), values, key).loss.numerator)(table)

    whole = gradient(table(), values)
    parts = [gradient(table(), {n: x[i::2] for n, x in values.items()}) for i in range(2)]
    assert jnp.linalg.norm(sum(parts) - whole) <= 1e-6 * jnp.linalg.norm(whole)


def test_the_rate_may_be_a_tracer():
    values = batch()
    count = jax.jit(lambda rate: task(rate=rate).hide(values, jax.random.key(0))[1].sum())
    assert count(0.1) < count(0.5) < count(0.9)
    assert count._cache_size() == 1


def test_tokens_that_may_be_chosen_are_counted_and_padding_is_not():
    values = batch(rows=4)
    assert task().count_tokens(values) == 4 * (L - 5)
    assert task().count_tokens(values | {"weights": np.zeros((4, L), np.float32)}) == 0
