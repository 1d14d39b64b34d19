"""FLOPs of families of models against closed forms that are written here by hand.

Letters: B rows, S tokens of a row (of the source, for two texts), L of the target, D embed,
H heads, G key and value heads, K head_dim, F hidden, V vocabulary, N layers, W window, E experts,
C chosen.
"""

import jax
import jax.numpy as jnp
import pytest
from flax import nnx

import luthier
from luthier import graph as graphs
from luthier import layers
from luthier.planner import ModelFlops, model_flops
from luthier.recipes import decoders, encoders

B = 2


def _forward(template, *shapes, dtype=jnp.int32):
    """Return the jaxpr of a published model's forward pass, and its number of parameters."""
    make = graphs.build(template)
    graphdef, state = nnx.split(nnx.eval_shape(lambda: make(rngs=nnx.Rngs(params=0))))
    arrays = [jax.ShapeDtypeStruct((B, *shape), dtype) for shape in shapes]
    jaxpr = jax.make_jaxpr(lambda s, *x: nnx.merge(graphdef, s)(*x))(state, *arrays)
    return jaxpr, sum(leaf.size for leaf in jax.tree.leaves(nnx.state(nnx.merge(graphdef, state))))


def _decoder(D, H, G, K, F, matrices):
    """Return the weights of a block that a token meets: attention, and `matrices` of the MLP."""
    return 2 * D * H * K + 2 * D * G * K + matrices * D * F


def _all_pairs(S, H, K):
    """Return the FLOPs of scores and their use over all pairs of a row, in one layer."""
    return 2 * (2 * S * S * H * K)


def test_dense_with_as_many_key_heads():
    N, D, H, K, F, V, S = 32, 4096, 32, 128, 11_008, 32_000, 4096
    jaxpr, parameters = _forward(decoders.llama2_7b(), (S,))
    products = 2 * B * S * (N * _decoder(D, H, H, K, F, 3) + D * V)
    attention = B * N * _all_pairs(S, H, K)
    # The published size: the matrices, two norms of a block and the last, and the embedding.
    assert parameters == N * _decoder(D, H, H, K, F, 3) + 2 * D * V + (2 * N + 1) * D
    assert model_flops(jaxpr, parameters, B * S) == ModelFlops(
        full=3 * (products + attention),
        causal=3 * products + 3 * attention // 2,
        six_n=6 * 6_738_415_616 * B * S,
    )


def test_dense_whose_embedding_is_tied():
    N, D, H, K, F, V, S = 12, 768, 12, 64, 3072, 50_257, 1024
    jaxpr, parameters = _forward(decoders.gpt2_small(), (S,))
    products = 2 * B * S * (N * _decoder(D, H, H, K, F, 2) + D * V)
    attention = B * N * _all_pairs(S, H, K)
    assert model_flops(jaxpr, parameters, B * S) == ModelFlops(
        full=3 * (products + attention),
        causal=3 * products + 3 * attention // 2,
        six_n=6 * 124_439_808 * B * S,
    )


def test_grouped_queries():
    N, D, H, G, K, F, V, S = 32, 4096, 32, 8, 128, 14_336, 128_256, 8192
    jaxpr, parameters = _forward(decoders.llama3_8b(), (S,))
    products = 2 * B * S * (N * _decoder(D, H, G, K, F, 3) + D * V)
    # Key heads that queries share save no FLOPs: every query head has scores of its own.
    attention = B * N * _all_pairs(S, H, K)
    assert model_flops(jaxpr, parameters, B * S) == ModelFlops(
        full=3 * (products + attention),
        causal=3 * products + 3 * attention // 2,
        six_n=6 * 8_030_261_248 * B * S,
    )


def test_windows():
    N, D, H, G, K, F, V, S, W = 32, 4096, 32, 8, 128, 14_336, 32_000, 16_384, 4096
    jaxpr, parameters = _forward(decoders.mistral_7b(), (S,))
    products = 2 * B * S * (N * _decoder(D, H, G, K, F, 3) + D * V)
    band = S * W - W * W // 2
    assert model_flops(jaxpr, parameters, B * S) == ModelFlops(
        full=3 * (products + B * N * _all_pairs(S, H, K)),
        causal=3 * (products + B * N * 2 * (2 * band * H * K)),
        six_n=6 * 7_241_732_096 * B * S,
    )


def test_a_window_that_is_longer_than_the_row_is_causal():
    S = 2048
    jaxpr, parameters = _forward(decoders.mistral_7b(), (S,))
    N, D, H, G, K, F, V = 32, 4096, 32, 8, 128, 14_336, 32_000
    products = 2 * B * S * (N * _decoder(D, H, G, K, F, 3) + D * V)
    found = model_flops(jaxpr, parameters, B * S)
    assert found.causal == 3 * (products + B * N * _all_pairs(S, H, K) // 2)


def test_windows_and_whole_rows_by_turns():
    N, D, H, G, K, F, V, S, W = 42, 3584, 16, 8, 256, 14_336, 256_000, 8192, 4096
    jaxpr, parameters = _forward(decoders.gemma2_9b(), (S,))
    products = 2 * B * S * (N * _decoder(D, H, G, K, F, 3) + D * V)
    per_pair = 2 * 2 * H * K
    visible = N // 2 * (S * W - W * W // 2) + N // 2 * S * S // 2
    found = model_flops(jaxpr, parameters, B * S)
    assert found.full == 3 * (products + B * N * S * S * per_pair)
    assert found.causal == 3 * (products + B * visible * per_pair)


@pytest.mark.parametrize("dispatch", [None, layers.AllExperts, layers.Capacity])
def test_experts_count_where_they_are_chosen(dispatch):
    N, D, H, G, K, F, V, S = 32, 4096, 32, 8, 128, 14_336, 32_000, 1024
    E, C = 8, 2
    template = decoders.mixtral_8x7b()
    if dispatch is not None:
        template.block.mlp.dispatch = graphs.evaluate(dispatch())
    jaxpr, parameters = _forward(template, (S,))
    block = _decoder(D, H, G, K, 0, 0) + C * 3 * D * F + D * E  # and the router
    products = 2 * B * S * (N * block + D * V)
    attention = B * N * _all_pairs(S, H, K)
    active = 12_879_925_248  # of 46.7 billion, as published
    assert parameters == active + N * (E - C) * 3 * D * F
    assert model_flops(jaxpr, active, B * S) == ModelFlops(
        full=3 * (products + attention),
        causal=3 * products + 3 * attention // 2,
        six_n=6 * active * B * S,
    )


def test_encoder_and_decoder():
    N, D, H, K, F, V = 12, 768, 12, 64, 2048, 32_128
    S, L = 512, 128
    jaxpr, parameters = _forward(encoders.t5_1_1_base(), (S,), (L,))
    A = D * H * K
    source = 2 * B * S * N * (4 * A + 3 * D * F)
    # Queries and results of cross attention are of the target, its keys and values of the source.
    target = 2 * B * L * (N * (4 * A + 2 * A + 3 * D * F) + D * V) + 2 * B * S * N * 2 * A
    own, crossed = B * N * _all_pairs(L, H, K), B * N * 2 * (2 * L * S * H * K)
    both_ways = B * N * _all_pairs(S, H, K)
    products = source + target
    assert model_flops(jaxpr, parameters, B * L) == ModelFlops(
        full=3 * (products + both_ways + crossed + own),
        causal=3 * (products + both_ways + crossed + own // 2),
        six_n=6 * 247_577_856 * B * L,
    )


def test_vision_transformer():
    N, D, H, K, F, classes = 12, 768, 12, 64, 3072, 1000
    patches, pixels = 14 * 14, 16 * 16 * 3
    jaxpr, parameters = _forward(encoders.vit_b16(), (224, 224, 3), dtype=jnp.float32)
    S = patches + 1  # the token of the class
    products = 2 * B * (patches * pixels * D + S * N * _decoder(D, H, H, K, F, 2) + D * classes)
    attention = B * N * _all_pairs(S, H, K)
    # Every patch sees every other one: nothing is halved.
    assert model_flops(jaxpr, parameters, B) == ModelFlops(
        full=3 * (products + attention),
        causal=3 * (products + attention),
        six_n=6 * 86_567_656 * B,
    )


@pytest.mark.full
def test_the_loss_of_an_experiment_adds_nothing():
    graph = graphs.resolve("configs.lm.quickstart")

    def number(path):
        return graphs.evaluate(graphs.get(graph, path))

    D, N, V = (number(f"model.{name}") for name in ("dim", "num_layers", "vocab_size"))
    H, G = (number(f"model.block.attention.num_{name}heads") for name in ("", "kv_"))
    F, S, K = number("model.block.mlp.hidden_dim"), number("data.length"), D // H
    rows, padding = number("training.global_batch_size"), number("model.embedding.pad_to_multiple")
    V = -(-V // padding) * padding
    products = 2 * rows * S * (N * _decoder(D, H, G, K, F, 3) + D * V)
    attention = rows * N * _all_pairs(S, H, K)
    found = luthier.plan(graph, jax.devices()[:1]).model_flops
    assert found.full == 3 * (products + attention)
    assert found.causal == 3 * products + 3 * attention // 2
