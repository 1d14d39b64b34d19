import jax
import jax.numpy as jnp
import pytest
from jax.ad_checkpoint import checkpoint_name

from luthier import layers
from luthier.planner import targets
from luthier.planner.search import (
    BATCH,
    COMPILERS,
    Activity,
    Buffer,
    Compiler,
    Manual,
    MeshLayout,
    ProgramStep,
    follow,
    parts_of_scan,
    peak,
    residual_bytes,
)

B, D, F, L = 16, 8, 32, 3
ONE = MeshLayout({}, {}, {})


def gradient(remat):
    """Return the activity of the gradient of a small stack of layers."""

    def layer(x, w):
        up, down = w
        h = checkpoint_name(x @ up, "mlp_up")
        return x + jnp.tanh(h) @ down, None

    def loss(ws, x):
        return jnp.sum(jax.lax.scan(remat(layer), x, ws)[0] ** 2)

    ws = (jax.ShapeDtypeStruct((L, D, F), "float32"), jax.ShapeDtypeStruct((L, F, D), "float32"))
    jaxpr = jax.make_jaxpr(jax.grad(loss))(ws, jax.ShapeDtypeStruct((B, D), "float32"))
    labels = [("layers", "embed", "mlp"), ("layers", "mlp", "embed"), (BATCH, "embed")]
    return follow(jaxpr, labels, [True, True, False])


def test_residuals_of_layers_are_reported_by_name():
    policy = jax.checkpoint_policies.save_only_these_names("mlp_up")
    named = residual_bytes(gradient(lambda f: jax.checkpoint(f, policy=policy)), ONE)
    entering = {"name": "what enters a layer", "bytes_per_device": L * B * D * 4}
    assert named == [{"name": "mlp_up", "bytes_per_device": L * B * F * 4}, entering]
    assert residual_bytes(gradient(jax.checkpoint), ONE) == [entering]


def test_recomputation_lowers_the_peak():
    assert peak(gradient(jax.checkpoint), ONE) < peak(gradient(lambda f: f), ONE)


def test_layouts_divide_what_they_shard():
    activity = gradient(jax.checkpoint)
    rules = {BATCH: ("data", "fsdp"), "mlp": ("tensor",)}
    parameters = {"embed": ("fsdp",), "mlp": ("tensor",)}
    one = MeshLayout({"data": 1, "fsdp": 1, "tensor": 1}, parameters, rules)
    wide = MeshLayout({"data": 4, "fsdp": 1, "tensor": 1}, parameters, rules)
    kept = lambda layout: residual_bytes(activity, layout)[0]["bytes_per_device"]
    assert kept(one) == 4 * kept(wide)
    assert peak(activity, wide) < peak(activity, one)


def test_parameters_are_gathered_and_gradients_summed():
    exchanges = gradient(jax.checkpoint).exchanges
    gathered = [e for e in exchanges if not e.over]
    assert {e.value.size for e in gathered} == {D * F * 4}
    assert {e.times for e in exchanges} == {L}
    assert [e for e in exchanges if e.over == (BATCH,)]
    assert [e for e in exchanges if e.over == ("mlp",)]


def test_parts_in_a_shard_map_are_counted_as_a_whole():
    mesh = jax.make_mesh((4,), ("sequence",), axis_types=(jax.sharding.AxisType.Auto,))
    along = jax.sharding.PartitionSpec(None, "sequence")

    def scores(x):
        products = lambda x: jnp.einsum("bld,bsd->bls", x, x)
        return jax.shard_map(products, mesh=mesh, in_specs=along, out_specs=along)(x)

    manual = Manual({"batch": ("data",), "length": ("sequence",)}, {"data": 1, "sequence": 4})
    jaxpr = jax.make_jaxpr(scores)(jax.ShapeDtypeStruct((2, 16, D), "float32"))
    activity = follow(jaxpr, [(BATCH, "length", None)], [False], manual)
    layout = MeshLayout({"data": 1, "sequence": 4}, {}, manual.table)
    assert peak(activity, layout) == 2 * 4 * 4 * 4  # four queries see four keys of their own place


def test_one_side_of_a_branch_counts():
    def either(x, is_large):
        wide = lambda x: jnp.sum((x @ x.T) @ x)
        return jax.lax.cond(is_large, wide, lambda x: jnp.sum(x), x)

    given = jax.ShapeDtypeStruct((64, D), "float32"), jax.ShapeDtypeStruct((), "bool")
    activity = follow(jax.make_jaxpr(either)(*given), [(BATCH, None), ()], [False, False])
    assert 64 * 64 * 4 < peak(activity, ONE) < 1.3 * 64 * 64 * 4


def test_what_is_read_by_element_has_the_axes_of_what_comes_of_it():
    def masked(x, noise):
        return jnp.where(noise @ jnp.ones((4, F)) > 0, x @ jnp.ones((D, F)), 0.0)

    given = jax.ShapeDtypeStruct((B, D), "float32"), jax.ShapeDtypeStruct((B, 4), "float32")
    activity = follow(jax.make_jaxpr(masked)(*given), [(BATCH, None), (None, None)], [False] * 2)
    assert {buffer.labels for buffer in activity.buffers} == {(BATCH, None)}


def test_a_result_has_the_axes_that_are_required_of_it():
    def scattered(x, places):
        return jnp.zeros((F, D)).at[places].add(x), 0.0

    given = jax.ShapeDtypeStruct((B, D), "float32"), jax.ShapeDtypeStruct((B,), "int32")
    jaxpr = jax.make_jaxpr(scattered)(*given)
    labels = [(BATCH, "embed"), (BATCH,)]
    own, required = (
        follow(jaxpr, labels, [False, False], None, None, results).buffers[-1].labels
        for results in ((), [("vocab", "embed"), ()])
    )
    assert (own, required) == ((None, "embed"), ("vocab", "embed"))


def test_sums_of_gradients_are_whole_before_they_are_sharded():
    passing = [b for step in gradient(jax.checkpoint).steps for i in step.inner for b in inner(i)]
    assert {(b.size, b.labels) for b in passing} == {
        (D * F * 4, ("embed", "mlp")),
        (D * F * 4, ("mlp", "embed")),
    }


def inner(activity):
    return [buffer for step in activity.steps for buffer in step.passing]


def test_what_nothing_reads_has_no_memory():
    def wasteful(x):
        jnp.sum(jnp.ones((10_000, 100)) @ jnp.ones((100, 10_000)))
        return x @ x

    jaxpr = jax.make_jaxpr(wasteful)(jax.ShapeDtypeStruct((B, B), "float32"))
    assert peak(follow(jaxpr, [(None, None)], [False]), ONE) == B * B * 4


def test_what_products_read_is_fused_or_takes_the_place_of_what_it_is_computed_from():
    def two(x):
        return jnp.sin(x @ x) @ x

    jaxpr = jax.make_jaxpr(two)(jax.ShapeDtypeStruct((B, B), "float32"))

    def arrays(**fields):
        compiler = Compiler(slack=4, **fields)
        made = follow(jaxpr, [(None, None)], [False], None, compiler)
        return len(made.buffers), peak(made, ONE, compiler) / (B * B * 4)

    assert arrays() == (3, 3)
    assert arrays(reuses=True) == (3, 2)
    assert arrays(fuses=True) == (2, 2)


@pytest.mark.parametrize(
    ("terms", "dtype", "arrays"),
    [
        (8192, "float32", 1),
        (8192 + 8, "float32", 2),  # 8 parts, of 1,025 terms: padded to a multiple of 16 bytes
        (8192 + 32, "float32", 1),
        (8192 + 32, "bfloat16", 2),
        (2000, "float32", 1),  # too few to split
    ],
)
def test_a_padded_operand_takes_no_place(terms, dtype, arrays):
    """XLA for GPUs pads what a product reads if the product has few results and its long sum does
    not divide into parts of a number of elements that is aligned."""

    def two(x, left, right):
        return jnp.sin(x @ left) @ right

    shapes = [jax.ShapeDtypeStruct(s, dtype) for s in ((64, 8), (8, terms), (terms, 8))]
    made = follow(
        jax.make_jaxpr(two)(*shapes), [(None, None)] * 3, [False] * 3, None, COMPILERS["gpu"]
    )
    size = 64 * terms * jnp.dtype(dtype).itemsize
    assert round(peak(made, ONE, COMPILERS["gpu"]) / size) == arrays


@pytest.mark.parametrize("weights", [layers.attention.softmax, jax.nn.softmax])
def test_the_exponentials_of_a_softmax_may_be_stored(weights):
    def attention(query, key, value):
        return weights(jnp.einsum("bd,kd->bk", query, key)).astype("bfloat16") @ value

    def loss(query, key):
        return jax.nn.logsumexp(jnp.einsum("bd,kd->bk", query, key), axis=-1)

    def stored(function, *others):
        arrays = jax.ShapeDtypeStruct((B, D), "float32"), *others
        jaxpr = jax.make_jaxpr(function)(*arrays)
        labels = [(BATCH, None), *[(None, None)] * len(others)]
        compiler = Compiler(fuses=True, keeps_exponentials=keeps)
        activity = follow(jaxpr, labels, [False] * len(arrays), compiler=compiler)
        return [(b.name, b.size) for b in activity.buffers if b.size == B * F * 4]

    key = jax.ShapeDtypeStruct((F, D), "float32")
    value = jax.ShapeDtypeStruct((F, D), "bfloat16")
    for keeps in (False, True):
        scores = [("(dot_general)", B * F * 4)]
        assert stored(attention, key, value) == scores + keeps * [("(exp)", B * F * 4)]
        assert stored(loss, key) == scores


def test_reductions_may_read_stored_arrays():
    def masked(x):  # `jnp.where` is a call, whose result the reduction reads
        return jnp.max(jnp.where(x > 0, x @ x, 0), axis=-1)

    def squared(x):  # the product of two is computed within
        y = x @ x
        return jnp.sum(y * y, axis=-1)

    def num_stored(function, **fields):
        jaxpr = jax.make_jaxpr(function)(jax.ShapeDtypeStruct((B, B), "float32"))
        made = follow(jaxpr, [(BATCH, None)], [False], None, Compiler(**fields))
        return sum(buffer.size == B * B * 4 for buffer in made.buffers)

    assert [num_stored(f) for f in (masked, squared)] == [1, 1]
    assert [num_stored(f, stores=True) for f in (masked, squared)] == [2, 1]


def test_single_elements_may_be_found_by_comparing_positions():
    def chosen(logits, labels):
        return jnp.sum(jnp.take_along_axis(logits, labels[:, None], axis=1))

    given = jax.ShapeDtypeStruct((B, F), "float32"), jax.ShapeDtypeStruct((B,), "int32")
    jaxpr = jax.make_jaxpr(jax.grad(chosen))(*given)

    def scattered(compiler):
        found = follow(jaxpr, [(BATCH, None), (BATCH,)], [False] * 2, None, compiler).buffers
        return [b.size for b in found if b.name.startswith("(scatter")]

    assert scattered(Compiler()) == [4 * B * F]
    assert scattered(Compiler(compares=True)) == [0]


def test_what_only_a_gradient_needs_may_wait_for_the_layers():
    def loss(w, head, x):
        x = jax.lax.scan(jax.checkpoint(lambda x, w: (jnp.tanh(x @ w), None)), x, w)[0]
        return jnp.sum((x @ head) ** 2)

    shapes = (L, D, D), (D, 64 * F), (B, D)
    given = [jax.ShapeDtypeStruct(shape, "float32") for shape in shapes]
    jaxpr = jax.make_jaxpr(jax.grad(loss, argnums=(0, 1)))(*given)
    labels = [("layers", None, None), (None, "vocab"), (BATCH, None)]

    def kinds(compiler):
        steps = follow(jaxpr, labels, [True, True, False], None, compiler).steps
        return ["loop" if s.inner else "gradient" for s in steps if s.inner or s.is_gradient]

    assert kinds(Compiler()) == ["loop", "loop", "gradient"]
    assert kinds(Compiler(delays=False)) == ["loop", "gradient", "loop"]


def test_the_parts_of_a_scan_are_found_by_their_ranks():
    def scanned(carry, other, constant, stacked):
        def body(carries, row):
            first, second = carries
            return (first + row.sum() * constant, 2 * second), (row, first)

        return jax.lax.scan(body, (carry, other), stacked)

    traced = jax.make_jaxpr(scanned)(1.0, jnp.ones((3, 2)), 2.0, jnp.ones((3, 4)))
    (equation,) = (eqn for eqn in traced.eqns if eqn.primitive.name == "scan")
    named = [equation.params.get(name) for name in ("num_consts", "num_carry")]
    assert parts_of_scan(equation) == (1, 2)
    assert named in ([None, None], [1, 2])


def test_an_activity_starts_empty_and_shares_nothing_with_others():
    one, other = Activity(), Activity()
    one.buffers.append(Buffer(4, ("batch",)))
    one.steps.append(ProgramStep(makes=[0]))
    assert (other.buffers, other.steps, ProgramStep().makes) == ([], [], [])


def test_a_barrier_of_several_values_passes_each_on_as_it_is():
    def program(x, w, are_held):
        values = jnp.sin(x), jnp.cos(w)
        x, w = jax.lax.optimization_barrier(values) if are_held else values
        return x @ w

    given = [jax.ShapeDtypeStruct((B, B), "float32"), jax.ShapeDtypeStruct((B, B), "float32")]
    for labels in ([(BATCH, None), (None, "mlp")], [(BATCH, None), (None, None)]):
        held, free = (
            follow(jax.make_jaxpr(program, static_argnums=2)(*given, are_held), labels, [False] * 2)
            for are_held in (True, False)
        )
        assert [(b.size, b.labels) for b in held.buffers] == [
            (b.size, b.labels) for b in free.buffers
        ]
        assert held.buffers[-1].labels == (BATCH, labels[1][1])


def test_every_platform_has_a_compiler():
    assert set(COMPILERS) == {*(chip.platform for chip in targets.CHIPS.values()), "cpu"}


def test_processors_store_halves_in_float32():
    given = [jax.ShapeDtypeStruct((B, D), "bfloat16"), jax.ShapeDtypeStruct((D, F), "bfloat16")]
    jaxpr = jax.make_jaxpr(lambda x, w: jnp.sin(x @ w) @ w.T)(*given)
    for platform, width in (("cpu", 4), ("gpu", 2)):
        made = follow(
            jaxpr, [(BATCH, None), (None, None)], [False, True], None, COMPILERS[platform]
        )
        assert max(b.size for b in made.buffers) == B * F * width


def test_padding_that_is_only_cast_to_fewer_bits_is_fused():
    def program(x, w, dtype):
        padded = jnp.pad(jnp.sin(x @ w), ((0, 0), (0, 3)))
        padded = padded.reshape(2, -1, F + 3).astype(dtype)
        return padded @ jnp.ones((F + 3, D), dtype)

    given = [jax.ShapeDtypeStruct((B, D), "float32"), jax.ShapeDtypeStruct((D, F), "float32")]
    for dtype, expected in ((jnp.float32, 1), (jnp.bfloat16, 0)):
        jaxpr = jax.make_jaxpr(lambda x, w, dtype=dtype: program(x, w, dtype))(*given)
        made = follow(jaxpr, [(BATCH, None), (None, None)], [False, True])
        sizes = [b.size for b in made.buffers]
        assert sizes.count(B * (F + 3) * 4) == expected


def test_tpus_pad_what_products_read_within_them():
    def program(x, w):
        padded = jax.lax.pad(jnp.sin(x @ w), 0.0, ((0, 0, 0), (0, 3, 0)))
        return padded.reshape(2, -1, F + 3) @ jnp.ones((F + 3, D))

    given = [jax.ShapeDtypeStruct((B, D), "float32"), jax.ShapeDtypeStruct((D, F), "float32")]
    jaxpr = jax.make_jaxpr(program)(*given)
    for platform, stored in (("gpu", [4]), ("tpu", [])):
        labels, compiler = [(BATCH, None), (None, None)], COMPILERS[platform]
        made = follow(jaxpr, labels, [False, True], None, compiler)
        padded = B * (F + 3)
        assert [b.size // padded for b in made.buffers if b.size % padded == 0] == stored


@pytest.mark.parametrize("is_read_whole", [False, True])
def test_tpus_store_residuals_of_a_loop_as_the_products_of_another_read_them(is_read_whole):
    def program(x, w):
        def forward(x, w):
            return x, jnp.sin(x @ w)

        def backward(total, each):
            kept, w = each
            total = total + kept.reshape(2, -1, F).reshape(-1, F) @ w.T
            return (total + kept.sum() if is_read_whole else total), None

        _, kept = jax.lax.scan(forward, x, w)
        return jax.lax.scan(backward, jnp.zeros_like(x), (kept, w))[0]

    given = [jax.ShapeDtypeStruct((B, D), "float32"), jax.ShapeDtypeStruct((3, D, F), "float32")]
    jaxpr = jax.make_jaxpr(program)(*given)
    for platform in ("gpu", "tpu"):
        labels, compiler = [(BATCH, None), ("layers", None, None)], COMPILERS[platform]
        made = follow(jaxpr, labels, [False, True], None, compiler)
        width = 2 if platform == "tpu" and not is_read_whole else 4
        assert [buffer.size for buffer in made.residuals] == [3 * B * F * width]


def test_padding_that_is_read_in_full_once_more_is_stored():
    """JAX traces the two calls of the padding once, so that their results are the same variable."""

    def program(x, w):
        cast = jnp.pad(jnp.sin(x @ w), ((0, 0), (0, 3))).astype(jnp.bfloat16)
        whole = jnp.pad(jnp.cos(x @ w), ((0, 0), (0, 3)))
        return cast @ jnp.ones((F + 3, D), jnp.bfloat16), whole @ jnp.ones((F + 3, D))

    given = [jax.ShapeDtypeStruct((B, D), "float32"), jax.ShapeDtypeStruct((D, F), "float32")]
    made = follow(jax.make_jaxpr(program)(*given), [(BATCH, None), (None, None)], [False, True])
    assert [b.size for b in made.buffers].count(B * (F + 3) * 4) == 1


def test_each_result_of_a_split_is_stored_at_its_own_size():
    def program(x, w):
        small, large = jax.lax.split(jnp.sin(x @ w), (D, F - D), axis=1)
        return small, large @ jnp.ones((F - D, D))

    given = [jax.ShapeDtypeStruct((B, D), "float32"), jax.ShapeDtypeStruct((D, F), "float32")]
    jaxpr = jax.make_jaxpr(program)(*given)
    made = follow(jaxpr, [(BATCH, None), (None, None)], [False, True])
    assert [b.size for b in made.buffers if b.name == "(split)"] == [B * (F - D) * 4]
