import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from luthier import graph
from luthier.errors import BadInput
from luthier.layers import PreNormBlock
from luthier.models import generate, part_without_cache
from luthier.recipes import decoders

PROMPTS = [[1, 2, 3], [4], [5, 6, 7, 8, 9, 10, 11], [4]]


def test_greedy_is_the_likeliest_token_of_the_full_forward_pass(make_decoder):
    model = make_decoder()
    forward = jax.jit(lambda model, inputs: model(inputs))
    continued = generate(model, PROMPTS, max_new_tokens=5, temperature=0.0)
    for prompt, new in zip(PROMPTS, continued, strict=True):
        row = prompt + new
        logits = forward(model, jnp.array([row + [0] * (16 - len(row))]))[0]
        assert new == logits.argmax(-1)[len(prompt) - 1 : len(row) - 1].tolist()


def test_a_model_without_a_cache_is_computed_anew_for_each_token(make_decoder, monkeypatch):
    options = {"max_new_tokens": 20, "seed": 1}
    with_cache = generate(make_decoder(), PROMPTS, **options)
    model = make_decoder()
    assert part_without_cache(model) == ""
    monkeypatch.delattr(PreNormBlock.__base__, "init_cache")
    assert part_without_cache(model) == "PreNormBlock"
    assert generate(model, PROMPTS, **options) == with_cache


def test_seeds_reproduce(make_decoder):
    run = lambda seed: generate(make_decoder(), PROMPTS, max_new_tokens=20, seed=seed)
    assert run(1) == run(1)
    assert run(1) != run(2)


@pytest.mark.full
def test_rows_do_not_depend_on_their_batch(make_decoder):
    run = lambda prompts: generate(make_decoder(), prompts, max_new_tokens=12, seed=3)
    together = run(PROMPTS)
    assert run(PROMPTS[:1]) == together[:1]
    assert run(PROMPTS[2:3]) == together[2:3]
    one, two, three, four = PROMPTS
    assert run([two, three, one, four]) == [together[i] for i in (1, 2, 0, 3)]


def test_equal_prompts_are_continued_differently(make_decoder):
    first, second = generate(make_decoder(), [[4], [4]], max_new_tokens=20)
    assert first != second


def test_stop_tokens_end_a_row(make_decoder):
    model = make_decoder()
    free = generate(model, PROMPTS, max_new_tokens=20)
    stops = [free[0][4], free[1][7]]
    stopped = generate(model, PROMPTS, max_new_tokens=20, stop_tokens=stops)
    for row, expected in zip(stopped, free, strict=True):
        ends = [i for i, token in enumerate(expected) if token in stops]
        assert row == expected[: ends[0] if ends else None]
    assert len(stopped[0]) <= 4


def test_stop_tokens_in_the_prompt_do_not_stop(make_decoder):
    free = generate(make_decoder(), PROMPTS, max_new_tokens=4, temperature=0.0)
    unused = next(i for i in PROMPTS[2] if not any(i in row for row in free))
    same = generate(
        make_decoder(), PROMPTS, max_new_tokens=4, temperature=0.0, stop_tokens=[unused]
    )
    assert free == same


def test_tokens_are_drawn_from_the_likeliest(make_decoder):
    greedy = generate(make_decoder(), PROMPTS, max_new_tokens=20, temperature=0.0)
    assert generate(make_decoder(), PROMPTS, max_new_tokens=20, top_k=1, top_p=0.9) == greedy


def test_near_lengths_share_a_program(make_decoder, caplog):
    def compilations(model, *arguments, **options):
        caplog.clear()
        with jax.log_compiles():
            generate(model, *arguments, **options)
        return sum("compilation of jit(_continue)" in r.getMessage() for r in caplog.records)

    model = make_decoder()
    # A length that no other test uses: 64 after rounding up.
    assert compilations(model, [[1, 2]], max_new_tokens=62) == 1
    options = {"temperature": 0.3, "seed": 5, "stop_tokens": [7]}
    assert compilations(model, [[3, 4, 5]], max_new_tokens=58, **options) == 0


def test_nothing_to_do(make_decoder):
    assert generate(make_decoder(), [], max_new_tokens=3) == []
    assert generate(make_decoder(), [[1], [2, 3]], max_new_tokens=0) == [[], []]


def test_bad_arguments_are_reported_together(make_decoder):
    with pytest.raises(BadInput) as caught:
        generate(make_decoder(), [[1], []], max_new_tokens=-1, temperature=-1.0, top_k=0, top_p=1.5)
    lines = str(caught.value).splitlines()
    assert len(lines) == 5
    for line, start in zip(
        lines, ["prompt 1 is empty", "max_new_tokens", "temperature", "top_k", "top_p"], strict=True
    ):
        assert line.startswith(start)


def test_tokens_outside_the_vocabulary_are_reported_by_position(make_decoder):
    model = make_decoder()
    with pytest.raises(BadInput) as caught:
        generate(model, [[1, 2], [5, model.vocab_size], [3, 1, -1]], max_new_tokens=2)
    last = model.vocab_size - 1
    assert str(caught.value).splitlines() == [
        f"token {token} at position {place} of prompt {row} is outside the vocabulary; the model's "
        f"vocabulary has the ids 0 to {last}"
        for row, place, token in ((1, 1, last + 1), (2, 2, -1))
    ]


@pytest.fixture(scope="module")
def learned():
    """A decoder with 100 learned positions, which is not a multiple of anything convenient."""
    template = decoders.gpt2(vocab_size=23, max_length=100, dim=16, num_layers=2, num_heads=2)
    return graph.build(template)(rngs=nnx.Rngs(0))


@pytest.mark.parametrize(("length", "new"), [(60, 37), (60, 40), (90, 10), (99, 1), (1, 99)])
def test_every_legal_length_generates(length, new, learned):
    prompts = [[i % 23 for i in range(length)], [5]]
    rows = generate(learned, prompts, max_new_tokens=new, temperature=0.0)
    assert [len(row) for row in rows] == [new, new]
    whole = np.array([prompts[0] + rows[0]])
    expected = learned(whole)[0].argmax(-1)[length - 1 : -1]
    assert rows[0] == expected.tolist()


def test_a_length_beyond_the_positions_is_refused_by_its_own_number(learned):
    with pytest.raises(BadInput, match="rows of 101 tokens, but only 100 learned positions"):
        generate(learned, [[1] * 60], max_new_tokens=41)


@pytest.mark.parametrize("chunks", [(1,) * 11, (11,), (4, 4, 3), (8, 3)])
def test_a_prompt_gives_the_same_logits_however_it_is_cut(chunks, make_decoder):
    model = make_decoder()
    row = jnp.array([[3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5]])
    cache, start = model.init_cache(1, 16), 0
    for size in chunks:
        logits, cache = model.decode(row[:, start : start + size], cache)
        start += size
    np.testing.assert_allclose(logits, model(row)[:, -1], rtol=1e-5, atol=1e-5)


def test_padding_before_a_row_changes_nothing(make_decoder):
    model = make_decoder()
    row = jnp.array([[3, 1, 4, 1, 5]])
    cache = dataclasses.replace(model.init_cache(1, 16), starts_B=jnp.array([6], jnp.int32))
    padded = jnp.concatenate([jnp.full((1, 6), 7, row.dtype), row], axis=1)
    _, cache = model.decode(padded[:, :8], cache)
    logits, _ = model.decode(padded[:, 8:], cache)
    np.testing.assert_allclose(logits, model(row)[:, -1], rtol=1e-5, atol=1e-5)


class Counting(nnx.Module):
    """A decoder that counts the calls of `decode` that are executed."""

    def __init__(self, model, calls):
        self.model = model
        self.count = lambda: calls.append(1)
        self.vocab_size = model.vocab_size

    def init_cache(self, batch_size, length):
        return self.model.init_cache(batch_size, length)

    def decode(self, tokens_BL, cache):
        jax.debug.callback(self.count)
        return self.model.decode(tokens_BL, cache)


def test_prompts_are_read_in_chunks_whatever_their_lengths(make_decoder):
    calls = []
    model = Counting(make_decoder(), calls)

    def count(*lengths):
        calls.clear()
        generate(model, [[1] * length for length in lengths], max_new_tokens=2)
        jax.effects_barrier()
        return len(calls)

    assert count(1024) == 8 + 2
    assert count(1023) == 8 + 2
    assert count(1024, 1, 700) == 8 + 2
    assert count(5) == 1 + 2


def test_a_state_that_would_read_padding_is_given_none(make_decoder):
    class Recurrent(nnx.Module):
        """Sums up the tokens: its cache is one number for each row."""

        vocab_size = 23

        def init_cache(self, batch_size, length):
            return jnp.zeros(batch_size, jnp.int32)

        def decode(self, tokens_BL, cache):
            cache = cache + tokens_BL.sum(1)
            return jax.nn.one_hot(cache % 23, 23), cache

    prompts = [[1, 2, 3], [4], [1] * 40]
    found = generate(Recurrent(), prompts, max_new_tokens=2, temperature=0.0)
    assert found == [[6, 12], [4, 8], [17, 11]]
