import jax
import jax.numpy as jnp

import luthier
from luthier.layers import CudnnAttention, Tokens, Window, abstract_forms
from luthier.planner import flops_by_dtype
from luthier.planner.roofline import kernel_bytes
from luthier.tasks.flops import count


def test_products_are_counted_by_type_and_loops_by_their_length():
    def run(x, ws, v):
        def layer(x, w):
            return (x @ w).astype(jnp.bfloat16), None

        return jax.lax.scan(layer, x, ws)[0].astype(jnp.float32) @ v

    shapes = [
        jax.ShapeDtypeStruct((4, 8), jnp.bfloat16),
        jax.ShapeDtypeStruct((3, 8, 8), jnp.bfloat16),
        jax.ShapeDtypeStruct((8, 2), jnp.float32),
    ]
    jaxpr = jax.make_jaxpr(run)(*shapes)
    assert flops_by_dtype(jaxpr) == {"bfloat16": 3 * 2 * 4 * 8 * 8, "float32": 2 * 4 * 8 * 2}


def test_they_sum_up_to_the_count():
    graph = luthier.graph.resolve("configs.lm.quickstart")
    plan = luthier.plan(graph, jax.devices()[:1])
    jaxpr = plan.program.traced_step.jaxpr
    assert sum(flops_by_dtype(jaxpr).values()) == count(jaxpr).total


def test_of_branches_the_one_with_most_products_counts():
    def run(choice, x, v):
        one = lambda x: (x @ x @ x).astype(jnp.float32)
        other = lambda x: x.astype(jnp.float32) @ v
        return jax.lax.cond(choice, one, other, x)

    shapes = [
        jax.ShapeDtypeStruct((), jnp.bool),
        jax.ShapeDtypeStruct((8, 8), jnp.bfloat16),
        jax.ShapeDtypeStruct((8, 8), jnp.float32),
    ]
    assert flops_by_dtype(jax.make_jaxpr(run)(*shapes)) == {"bfloat16": 2 * 2 * 8 * 8 * 8}


def test_a_kernel_is_charged_for_the_pairs_that_it_computes_and_the_bytes_that_it_moves():
    """cuDNN's attention in a scan of three layers, both passes, with half as many key heads."""
    tokens = Tokens.single(2, 256)

    def loss(query, key, scale):
        core = CudnnAttention(Window(64), scale, max_documents=2)

        def layer(query, _):
            return core(query, key, key, tokens, tokens), None

        return jax.lax.scan(layer, query, None, length=3)[0].astype(jnp.float32).sum()

    query, key = (jax.ShapeDtypeStruct((2, 256, n, 16), jnp.bfloat16) for n in (4, 2))
    with abstract_forms():
        jaxpr = jax.make_jaxpr(jax.grad(loss, (0, 1)))(query, key, 0.5)
    product = 2 * 2 * 4 * 256 * 256 * 16
    visible = 64 / 256 - 64**2 / 2 / 256**2
    assert flops_by_dtype(jaxpr) == {"bfloat16": int(3 * (2 + 5) * product * visible)}
    # Queries, keys, values and results; going back with their gradients; and the statistics.
    arrays, statistics = 2 * 2 * query.size + 2 * 2 * key.size, 4 * 2 * 2 * 4 * 256
    assert kernel_bytes(jaxpr) == 3 * (3 * arrays + 2 * statistics)
