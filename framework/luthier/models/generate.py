"""Generation: prompts are continued token by token, in one compiled loop.

Shapes: B rows, L tokens that are read at once, T places of a row, V vocab.
"""

from __future__ import annotations

import dataclasses
import functools
import zlib
from collections import Counter
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from luthier.errors import BadInput, Problem
from luthier.layers.attention.multi_head import KeyValues
from luthier.models.decoder import Cache
from luthier.models.language_model import LanguageModel
from luthier.models.sampling import sample

# Sizes are rounded up to multiples of these, so that similar ones share a compiled program. What is
# added is empty and small: places of the cache, and entries of a list that are never drawn.
_LENGTH_MULTIPLE = 32
_STOP_MULTIPLE = 8
# Prompts are read in chunks, of about an eighth of the longest within these bounds: fewer tokens
# would leave matrix units idle, and more would be padding.
_SMALLEST_CHUNK, _LARGEST_CHUNK = 16, 512


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class _Rows:
    """The carry of the loop: prompts with the tokens drawn so far, and the state of the model."""

    tokens_BT: jax.Array
    index: jax.Array
    done_B: jax.Array
    logits_BV: jax.Array
    cache: Any


def generate(
    model: LanguageModel,
    prompts: Sequence[Sequence[int]],
    *,
    max_new_tokens: int,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    stop_tokens: Sequence[int] = (),
    seed: int = 0,
) -> list[list[int]]:
    """Continue prompts by sampling.

    If a part of the model has no cache, such as a user's own block, each token is computed from all
    of those before it: that is as exact, and slower.

    The draws for a prompt depend on the seed, the prompt, and the number of equal prompts before
    it, but not on the other prompts of the batch.

    Args:
      model: The language model.
      prompts: Token ids, at least one for each prompt (a BOS where there is nothing else); lengths
        may differ.
      max_new_tokens: Most tokens to add to each prompt.
      temperature: Divides the logits; 0 takes the likeliest token each time.
      top_k: Draw from the k likeliest tokens; None means all.
      top_p: Draw from the smallest set of likeliest tokens with probability p; None means all.
      stop_tokens: A row ends where one of these is drawn; it is not returned.
      seed: Seed of the draws.

    Returns:
      The new tokens of each prompt.

    Raises:
      BadInput: An argument is out of its range; all such arguments are named.
    """
    _check(prompts, max_new_tokens, temperature, top_k, top_p, getattr(model, "vocab_size", None))
    if not prompts or not max_new_tokens:
        return [[] for _ in prompts]
    lengths = np.array([len(prompt) for prompt in prompts], np.int32)
    cached = not part_without_cache(model)
    cache = jax.eval_shape(lambda: model.init_cache(1, 1)) if cached else None
    layout = _Layout.of(model, cache, lengths, max_new_tokens)
    ends = layout.starts + lengths
    tokens = np.zeros((len(prompts), layout.num_places), np.int32)
    for row, prompt, start, end in zip(tokens, prompts, layout.starts, ends, strict=True):
        row[start:end] = prompt
    num_stops = len(stop_tokens)
    # Padded with -1, which no token is. At least one, so that the array is never empty.
    stops = np.full(num_stops + (-num_stops % _STOP_MULTIPLE or _STOP_MULTIPLE), -1, np.int32)
    stops[:num_stops] = stop_tokens
    graphdef, state = nnx.split(model)
    tokens = _continue(
        graphdef,
        layout.chunk,
        cached,
        state,
        tokens,
        jnp.int32(layout.num_chunks),
        layout.starts,
        ends,
        ends + np.int32(max_new_tokens),
        stops,
        _row_keys(prompts, seed),
        jnp.float32(temperature),
        None if top_k is None else jnp.int32(top_k),
        None if top_p is None else jnp.float32(top_p),
    )
    rows = zip(np.asarray(tokens).tolist(), ends.tolist(), strict=True)
    return [_until(row[n : n + max_new_tokens], stop_tokens) for row, n in rows]


@dataclasses.dataclass(frozen=True)
class _Layout:
    """The places of prompts and of what continues them.

    Args:
      starts: The place of the first token of each row, int32 [B].
      chunk: Tokens that are read at once.
      num_chunks: Chunks of the prompts that are read before the first token is drawn.
      num_places: T.
    """

    starts: np.ndarray
    chunk: int
    num_chunks: int
    num_places: int

    @classmethod
    def of(
        cls, model: LanguageModel, cache: Any, lengths: np.ndarray, max_new_tokens: int
    ) -> _Layout:
        """Return the layout for prompts of these lengths, given the abstract cache of the model."""
        # The chunk and the number of places are shapes, and so is the number of rows. The first two
        # are rounded, so that calls with other prompts find a compiled program; the last is not: a
        # row that nobody asked for would be computed at every step. A model with learned positions
        # may not have places for what rounding adds: then nothing is rounded, and where even that
        # is too long, its own message names the length that the caller asked for.
        longest = int(lengths.max())
        total = longest + max_new_tokens
        if not _takes_padding(cache):
            # Rows are in step from place 0. The rest of longer prompts is read token by token, in
            # rows that do not draw yet.
            shortest = int(lengths.min())
            chunk = _SMALLEST_CHUNK if cache is not None and shortest >= _SMALLEST_CHUNK else 1
            places = _round_up(total, _LENGTH_MULTIPLE)
            places = places if _fits(model, cache, places) else total
            return cls(np.zeros_like(lengths), chunk, shortest // chunk, places)
        chunk = 1 << ((longest + 7) // 8).bit_length() - 1  # a power of two, at most an eighth
        chunk = min(max(chunk, _SMALLEST_CHUNK), _LARGEST_CHUNK)
        end = _round_up(longest, chunk)
        places = _round_up(end + max_new_tokens, _LENGTH_MULTIPLE)
        if not _fits(model, cache, places):
            chunk, end, places = longest, longest, total
        # All prompts end at one place: what precedes the shorter ones is padding, to the masks of
        # attention. Every row then draws from the first step on, however long the others are.
        return cls((end - lengths).astype(np.int32), chunk, end // chunk, places)


def _round_up(number: int, multiple: int) -> int:
    return number + -number % multiple


def _fits(model: LanguageModel, cache: Any, length: int) -> bool:
    """Return whether a model has positions for rows of a length."""
    try:
        if cache is None:
            jax.eval_shape(lambda: model.hidden(jnp.zeros((1, length), jnp.int32)))
        else:
            jax.eval_shape(lambda: model.init_cache(1, length))
    except BadInput:
        return False
    return True


def _takes_padding(cache: Any) -> bool:
    """Return whether padding before a row leaves no trace in a cache."""
    # Keys and values of padding are masked. A state that is carried from token to token would have
    # read it.
    if not isinstance(cache, Cache):
        return False
    is_attention = lambda leaf: isinstance(leaf, KeyValues)  # noqa: E731
    return all(map(is_attention, jax.tree.leaves(cache.layers, is_leaf=is_attention)))


def part_without_cache(model: LanguageModel) -> str:
    """Return the class of a part without a cache of earlier tokens; empty if all have one.

    Args:
      model: The language model, with or without arrays.

    Returns:
      The name of the class, without its module.
    """
    # Asked by trying, abstractly: `init_cache` goes through all parts, and a part that has none
    # raises AttributeError from deep inside. Other AttributeErrors are bugs of a part.
    try:
        jax.eval_shape(lambda: model.init_cache(1, 1))
    except AttributeError as error:
        if error.name == "init_cache":
            return type(error.obj).__name__
        raise
    return ""


def _decode_all(model: LanguageModel, tokens_BT: jax.Array, length: jax.Array | int) -> jax.Array:
    """Return the logits after the first `length` tokens, [B, V]; later ones have no influence.

    The model is causal: tokens on the right change nothing on the left.
    """
    hidden_BTD = model.hidden(tokens_BT)
    last_B1D = jax.lax.dynamic_slice_in_dim(hidden_BTD, length - 1, 1, axis=1)
    return model.logits(last_B1D)[:, 0]


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def _continue(
    graphdef: Any,
    chunk: int,
    cached: bool,
    state: Any,
    tokens_BT: jax.Array,
    num_chunks: jax.Array,
    starts_B: jax.Array,
    prompt_ends_B: jax.Array,
    ends_B: jax.Array,
    stop_tokens: jax.Array,
    keys_B: jax.Array,
    temperature: jax.Array,
    top_k: jax.Array | None,
    top_p: jax.Array | None,
) -> jax.Array:
    """Fill tokens_BT after the prompts, which stand from `starts_B` to `prompt_ends_B`."""
    # Static: the structure of the model, the length of a chunk, whether there is a cache.
    # Everything else is traced.
    #
    # All rows run in step, at the same `index`, so that the cache has one length. In a row whose
    # prompt is longer than `index`, the token of the prompt takes the place of the drawn one: where
    # the model takes padding, there is no such row. The loop ends when every row has drawn a stop
    # token or its last one; a row that is done keeps drawing, and `_until` cuts it.
    model = nnx.merge(graphdef, state)
    B, T = tokens_BT.shape
    index = num_chunks * chunk
    if cached:
        cache = model.init_cache(B, T)
        if isinstance(cache, Cache):
            cache = dataclasses.replace(cache, starts_B=starts_B)

        def read(number: jax.Array, carry: tuple[jax.Array, Any]) -> tuple[jax.Array, Any]:
            tokens_BL = jax.lax.dynamic_slice_in_dim(tokens_BT, number * chunk, chunk, axis=1)
            return model.decode(tokens_BL, carry[1])

        # Something for the loop to start with, which the first chunk replaces.
        logits = jax.eval_shape(model.decode, tokens_BT[:, :1], cache)[0]
        logits_BV = jnp.zeros(logits.shape, logits.dtype)
        logits_BV, cache = jax.lax.fori_loop(0, num_chunks, read, (logits_BV, cache))
    else:
        logits_BV, cache = _decode_all(model, tokens_BT, index), None
    fold = jax.vmap(jax.random.fold_in)

    def going(rows: _Rows) -> jax.Array:
        return ~rows.done_B.all()

    def step(rows: _Rows) -> _Rows:
        # A key for each row and position, not a chain of splits: the draw at a position does not
        # depend on where the row or the loop began.
        keys_B_ = fold(keys_B, rows.index - starts_B)
        drawn_B = sample(keys_B_, rows.logits_BV, temperature=temperature, top_k=top_k, top_p=top_p)
        in_prompt_B = rows.index < prompt_ends_B
        next_B = jnp.where(in_prompt_B, rows.tokens_BT[:, rows.index], drawn_B)
        tokens_BT = rows.tokens_BT.at[:, rows.index].set(next_B)
        stopped_B = ~in_prompt_B & jnp.isin(next_B, stop_tokens)
        done_B = rows.done_B | stopped_B | (rows.index + 1 >= ends_B)
        if cached:
            logits_BV, cache = model.decode(next_B[:, None], rows.cache)
        else:
            logits_BV, cache = _decode_all(model, tokens_BT, rows.index + 1), None
        return _Rows(tokens_BT, rows.index + 1, done_B, logits_BV, cache)

    start = _Rows(tokens_BT, index, ends_B <= index, logits_BV, cache)
    return jax.lax.while_loop(going, step, start).tokens_BT


def _row_keys(prompts: Sequence[Sequence[int]], seed: int) -> jax.Array:
    """Key every row by its prompt, and equal prompts by their order."""
    # By content, not by number of the row, so that a batch may be cut or put in another order.
    # Equal prompts must differ, or several samples of one prompt would be the same. The seed is
    # folded with the checksum first, so 32 bits of the prompt enter; a collision of two different
    # prompts only means that one of them is counted as the second.
    seen: Counter[int] = Counter()
    folds = []
    for prompt in prompts:
        digest = zlib.crc32(np.asarray(prompt, "<i4").tobytes())
        folds.append((digest, seen[digest]))
        seen[digest] += 1
    fold = jax.vmap(jax.random.fold_in)
    digests, orders = np.array(folds, np.uint32).T
    keys = jax.vmap(jax.random.fold_in, (None, 0))(jax.random.key(seed), digests)
    return fold(keys, orders)


def _until(tokens: list[int], stop_tokens: Sequence[int]) -> list[int]:
    ends = [i for i, token in enumerate(tokens) if token in stop_tokens]
    return tokens[: ends[0]] if ends else tokens


def token_problems(
    rows: Sequence[Sequence[int]], vocab_size: int | None, name: str
) -> list[Problem]:
    """Return a problem for each row with a token outside of the vocabulary.

    Args:
      rows: Token ids.
      vocab_size: Size of the model's vocabulary; None if it is unknown.
      name: The name of a row in messages.
    """
    # On the host, since inside of the program an id beyond the table gives NaN, not an error.
    if vocab_size is None:
        return []
    problems = []
    for number, row in enumerate(rows):
        ids = np.asarray(row, np.int64)
        wrong = np.flatnonzero((ids < 0) | (ids >= vocab_size))
        if wrong.size:
            what = f"token {ids[wrong[0]]} at position {wrong[0]} of {name} {number}"
            remedy = f"the model's vocabulary has the ids 0 to {vocab_size - 1}"
            problems.append(Problem(f"{what} is outside the vocabulary", remedy=remedy))
    return problems


def _check(
    prompts: Sequence[Sequence[int]],
    max_new_tokens: int,
    temperature: float,
    top_k: int | None,
    top_p: float | None,
    vocab_size: int | None,
) -> None:
    # An empty prompt would leave no position whose logits give the first token. Two arguments need
    # no check: a stop token outside of the vocabulary is never drawn, and a `top_k` beyond it keeps
    # all tokens (`sampling.restrict`). NaN fails the comparisons below, as it should.
    problems = [
        Problem(f"prompt {i} is empty", remedy="begin it with the tokenizer's BOS")
        for i, prompt in enumerate(prompts)
        if not len(prompt)
    ]
    problems += token_problems(prompts, vocab_size, "prompt")
    if max_new_tokens < 0:
        problems.append(Problem(f"max_new_tokens is {max_new_tokens}, not >= 0"))
    if not 0 <= temperature < float("inf"):
        problems.append(Problem(f"temperature is {temperature}, not a finite number >= 0"))
    if top_k is not None and top_k < 1:
        problems.append(Problem(f"top_k is {top_k}, not >= 1", remedy="None keeps all tokens"))
    if top_p is not None and not 0 < top_p <= 1:
        problems.append(Problem(f"top_p is {top_p}, not in (0, 1]", remedy="None keeps all tokens"))
    if problems:
        raise BadInput(problems)
