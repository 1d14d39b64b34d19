"""T5 against an independent implementation; tools/goldens/make_encoders.py made the files."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from luthier.checkpoint.foreign import families
from luthier.models import transduce
from luthier.recipes import encoders

SIZES = {
    "vocab_size": 61,
    "dim": 24,
    "num_layers": 2,
    "num_heads": 4,
    "head_dim": 8,
    "hidden_dim": 32,
    "num_buckets": 12,
    "max_distance": 20,
}
KINDS = {
    "t5": (encoders.t5(**SIZES), families.named("t5")),
    "t5_gated": (encoders.t5_gated(**SIZES), families.named("t5_gated")),
}


@pytest.fixture(scope="module", params=KINDS)
def golden(request, foreign_golden):
    return foreign_golden(request.param, *KINDS[request.param])


@jax.jit
def logits(model, arrays):
    source = model.encode(arrays["input_ids"], segments_BL=arrays["attention_mask"])
    return model.logits(model.decode_hidden(arrays["decoder_input_ids"], source))


def test_logits(golden):
    model, arrays, _ = golden
    found = logits(model, arrays)
    np.testing.assert_allclose(found, arrays["logits"], rtol=1e-5, atol=1e-5)


def test_greedy_continuation(golden):
    model, arrays, config = golden
    rows = zip(arrays["input_ids"], arrays["attention_mask"].sum(1), strict=True)
    start = config["decoder_start_token_id"]
    found = transduce(
        model,
        [row[:length].tolist() for row, length in rows],
        start_token=start,
        max_new_tokens=arrays["greedy"].shape[1],
        temperature=0.0,
    )
    assert found == arrays["greedy"].tolist()


@pytest.mark.full
def test_token_by_token_gives_the_logits_of_the_whole(golden):
    model, arrays, _ = golden
    inputs = arrays["decoder_input_ids"]

    @jax.jit
    def step_by_step(model):
        source = model.encode(arrays["input_ids"], segments_BL=arrays["attention_mask"])
        cache = model.init_cache(source, inputs.shape[1])
        first, cache = model.decode(inputs[:, :5], cache)
        step = lambda cache, token: model.decode(token[:, None], cache)[::-1]
        _, rest = jax.lax.scan(step, cache, inputs.T[5:])
        return jnp.concatenate([first[:, None], rest.swapaxes(0, 1)], axis=1)

    expected = arrays["logits"][:, 4:]
    np.testing.assert_allclose(step_by_step(model), expected, rtol=1e-5, atol=1e-5)
