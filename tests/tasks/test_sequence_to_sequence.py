import jax
import jax.numpy as jnp
import numpy as np
import pytest

from luthier.metrics import EXACT_MATCH, NATS_PER_TOKEN
from luthier.tasks import LanguageModelling, SequenceToSequence

V, D, S, T = 11, 5, 6, 4


class Model:
    """Adds the mean of the source of its own segment to every target token."""

    def __init__(self, table):
        self.table = table

    def encode(self, inputs, *, positions_BL, segments_BL, dropout=None):
        states = self.table[inputs] + 0.1 * positions_BL[..., None]
        if dropout is not None:
            states = states * (dropout.uniform((D,)) < 0.7)
        return states, segments_BL

    def decode_hidden(self, inputs, source, *, positions_BL, segments_BL, dropout=None):
        states_BSD, segments_BS = source
        same_BTS = (segments_BL[:, :, None] == segments_BS[:, None]) & (segments_BS > 0)[:, None]
        mean_BTD = jnp.einsum("BTS,BSD->BTD", same_BTS.astype(jnp.float32), states_BSD)
        hidden = self.table[inputs] + 0.1 * positions_BL[..., None] + mean_BTD
        return hidden if dropout is None else hidden * (dropout.uniform((D,)) < 0.7)

    def logits(self, hidden):
        return hidden @ self.table.T


def table():
    return jax.random.normal(jax.random.key(0), (V, D))


def pair(generator, source, target):
    return {
        "inputs": generator.integers(0, V, source, np.int32),
        "input_positions": np.arange(source, dtype=np.int32),
        "decoder_inputs": generator.integers(0, V, target, np.int32),
        "targets": generator.integers(0, V, target, np.int32),
        "positions": np.arange(target, dtype=np.int32),
        "target_bytes": np.ones(target, np.int32),
        "weights": np.ones(target, np.float32),
    }


def row(pairs, documents):
    """Put pairs into one row, numbered from 1."""
    source_names = ("inputs", "input_positions", "input_segments")
    parts = []
    for i, (values, document) in enumerate(zip(pairs, documents, strict=True), 1):
        own = dict(values)
        own["input_segments"] = np.full(len(values["inputs"]), i, np.int32)
        own["segments"] = np.full(len(values["targets"]), i, np.int32)
        own["documents"] = np.full(len(values["targets"]), document, np.int32)
        parts.append(own)
    joined = {name: np.concatenate([p[name] for p in parts]) for name in parts[0]}
    size = lambda name: S if name in source_names else T
    return {n: np.pad(x, (0, size(n) - len(x))) for n, x in joined.items()}


def batches():
    """The same two pairs, packed into one row, and in a row of their own each."""
    generator = np.random.default_rng(0)
    pairs = [pair(generator, 4, 1), pair(generator, 2, 3)]
    packed = [row(pairs, [5, 6])]
    apart = [row(pairs[:1], [5]), row(pairs[1:], [6])]
    stack = lambda rows: {n: np.stack([r[n] for r in rows]) for n in rows[0]}
    return stack(packed), stack(apart)


@pytest.mark.full
@pytest.mark.parametrize("key", [None, 0])
def test_packing_changes_neither_loss_nor_dropout(key):
    key = None if key is None else jax.random.key(key)
    packed, apart = (
        SequenceToSequence(label_smoothing=0.1).loss(Model(table()), values, key).loss.host()
        for values in batches()
    )
    assert packed.denominator == apart.denominator == 4
    assert packed.numerator == pytest.approx(apart.numerator, rel=1e-6)


def test_dropout_follows_the_key():
    values = batches()[0]
    loss = lambda key: float(SequenceToSequence().loss(Model(table()), values, key).loss.numerator)
    assert len({loss(None), loss(jax.random.key(0)), loss(jax.random.key(1))}) == 3


def test_evaluates_against_numpy():
    values = batches()[1]
    model = Model(table())
    hidden = model.decode_hidden(
        values["decoder_inputs"],
        model.encode(
            values["inputs"],
            positions_BL=values["input_positions"],
            segments_BL=values["input_segments"],
        ),
        positions_BL=values["positions"],
        segments_BL=values["segments"],
    )
    logits = np.asarray(model.logits(hidden), np.float64)
    log_p = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    nats = -np.take_along_axis(log_p, values["targets"][..., None], -1)[..., 0]
    ratios = SequenceToSequence().evaluate(model, values)
    assert tuple(ratios) == SequenceToSequence.metrics == (*LanguageModelling.metrics, EXACT_MATCH)
    expected = (nats * values["weights"]).sum() / 4
    assert NATS_PER_TOKEN.value(ratios[NATS_PER_TOKEN]) == pytest.approx(expected, rel=1e-5)


def test_declares_its_batch():
    assert set(SequenceToSequence.batch_axes) == set(batches()[0])
    assert SequenceToSequence().count_tokens(batches()[0]) == 4


def test_a_target_matches_where_every_token_has_the_largest_logit():
    packed, apart = batches()
    model = Model(table())
    for values in (packed, apart):
        hidden = model.decode_hidden(
            values["decoder_inputs"],
            model.encode(
                values["inputs"],
                positions_BL=values["input_positions"],
                segments_BL=values["input_segments"],
            ),
            positions_BL=values["positions"],
            segments_BL=values["segments"],
        )
        best = np.asarray(jnp.argmax(model.logits(hidden), -1), np.int32)
        # The first text is right, the second has one mistake.
        targets = best.copy()
        last = np.argwhere((values["documents"] == 6) & (values["positions"] == 2))[0]
        targets[tuple(last)] = (targets[tuple(last)] + 1) % V
        found = SequenceToSequence().evaluate(model, values | {"targets": targets})
        assert EXACT_MATCH.value(found[EXACT_MATCH]) == 0.5
