"""AutoAttention: the cores that it chooses, and where their reasons are shown."""

import dataclasses
import json

import jax
import jax.numpy as jnp
import pytest

from luthier import graph as graphs
from luthier import planner
from luthier.layers import (
    Alibi,
    AutoAttention,
    BlockwiseAttention,
    Causal,
    CudnnAttention,
    DropoutKeys,
    EinsumAttention,
    SplashAttention,
    Tokens,
    Window,
    abstract_forms,
)
from luthier.layers.attention import CHOICE_REASONS, without_kernels
from luthier.parallel import AxisType, Mesh, Rules, activation_rules, make_mesh, stand_ins_for

BIAS = Alibi(num_heads=4)
CORE = "model.block.attention.core"


KERNELS = AutoAttention(kernels=True)


class Nearly(Causal):
    """A mask of a user, which shows more than the one that it is derived from."""

    def __call__(self, query, key):
        return super().__call__(query, key) | (key.positions_BL[:, None, :] < 3)


class Own:
    """A mask of a user."""

    def __repr__(self):  # without an address: test ids are the same in every process
        return "Own()"

    def __call__(self, query, key):
        return Causal()(query, key)


def on(platform, axis_type=AxisType.AUTO, **sizes):
    """Return what `choose` answers on a platform and a mesh, as a function of its arguments."""
    mesh = make_mesh(Mesh(**sizes).sizes(8), jax.devices(), axis_type)

    def choose(core, length, dtype="bfloat16", num_keys=None, size=64, **terms):
        shapes = (2, length, 4, size), (2, num_keys or length, 2, size)
        with activation_rules(mesh, Rules()), stand_ins_for(platform):
            found = core.choose(*shapes, dtype, **terms)
        assert set(found.reasons) <= set(CHOICE_REASONS)
        return type(found.core), found.reasons

    return choose


def test_on_a_cpu_by_the_number_of_scores():
    choose, core = on("cpu"), AutoAttention(Window(9), 0.5, 30.0, 0.1)
    assert choose(core, 512) == (EinsumAttention, ("few",))
    assert choose(core, 1024) == (BlockwiseAttention, ("many",))
    assert choose(core, 1, num_keys=8192) == (EinsumAttention, ("few",))
    shape = (2, 1024, 4, 64)
    assert core.choose(shape, shape, "float32").core == BlockwiseAttention(
        Window(9), 0.5, 30.0, 0.1, block_size=256
    )


GPU = [
    (KERNELS, {}, ("kernel",)),
    (dataclasses.replace(KERNELS, cap=30.0), {}, ("cap",)),
    (AutoAttention(Own(), kernels=True), {}, ("mask",)),
    (AutoAttention(Nearly(), kernels=True), {}, ("mask",)),
    (AutoAttention(), {}, ("kernels",)),
    (KERNELS, {"dtype": "float32"}, ("dtype",)),
    (KERNELS, {"size": 320}, ("heads",)),
    (KERNELS, {"bias": BIAS}, ("bias",)),
    (AutoAttention(dropout=0.1, kernels=True), {"drops": True}, ("dropout",)),
    (KERNELS, {"num_keys": 8192}, ("tokens",)),
    (KERNELS, {"is_within": False}, ("tokens",)),
]


@pytest.mark.parametrize(("core", "terms", "reasons"), GPU, ids=str)
def test_on_a_gpu_by_what_cudnn_has(core, terms, reasons):
    for length, rest in ((1024, (EinsumAttention, "few")), (4096, (BlockwiseAttention, "many"))):
        if terms.get("num_keys") and length == 1024:
            rest = BlockwiseAttention, "many"
        expected = (CudnnAttention, reasons)
        if reasons != ("kernel",):
            expected = rest[0], (rest[1], *reasons)
        assert on("gpu")(core, length, **terms) == expected


def test_a_call_says_what_is_asked_of_the_kernel():
    """Texts of equal lengths are still two texts, which cuDNN would attend to as to one."""
    tokens, other = Tokens.single(1, 64), Tokens.single(1, 64)
    keys = DropoutKeys.of_tokens(jax.random.key(3), tokens.segments_BL, tokens.positions_BL)
    mesh = make_mesh(Mesh().sizes(8), jax.devices())

    def reasons(core, *rest):
        with activation_rules(mesh, Rules()), stand_ins_for("gpu"), abstract_forms():
            x = jnp.ones((8, 64, 4, 64), jnp.bfloat16)
            traced = jax.make_jaxpr(lambda x: core(x, x, x, *rest))(x)
        return planner.attention_cores(traced)

    def einsum(reason):
        return {"EinsumAttention": f"{CHOICE_REASONS['few']}; {CHOICE_REASONS[reason]}"}

    assert reasons(KERNELS, tokens, tokens) == {"CudnnAttention": CHOICE_REASONS["kernel"]}
    assert reasons(KERNELS, tokens, other) == einsum("tokens")
    assert reasons(KERNELS, tokens, tokens, None, BIAS) == einsum("bias")
    dropping = dataclasses.replace(KERNELS, dropout=0.1)
    assert reasons(dropping, tokens, tokens, keys) == einsum("dropout")


def test_a_scale_that_is_traced_is_not_given_to_a_kernel():
    found = []

    def trace(scale):
        found.append(on("gpu")(dataclasses.replace(KERNELS, scale=scale), 256))
        return scale

    jax.make_jaxpr(trace)(0.5)
    assert found == [(EinsumAttention, ("few", "traced"))]


def test_packed_trials_have_no_kernels():
    @jax.jit
    def attend(x):
        tokens = Tokens.single(1, 128)
        return KERNELS(x, x, x, tokens, tokens)

    x = jnp.ones((1, 128, 4, 64), jnp.bfloat16)
    mesh = make_mesh(Mesh().sizes(8), jax.devices())
    with abstract_forms(), activation_rules(mesh, Rules()), stand_ins_for("tpu"):
        kernel = planner.attention_cores(jax.make_jaxpr(attend)(x))
        with without_kernels():  # what was traced before, with kernels, is traced again
            packed = planner.attention_cores(jax.make_jaxpr(jax.vmap(attend))(x[None]))
    assert kernel == {"SplashAttention": CHOICE_REASONS["kernel"]}
    assert packed == {"EinsumAttention": f"{CHOICE_REASONS['few']}; {CHOICE_REASONS['packed']}"}
    for platform, length in (("gpu", 2048), ("tpu", 2048)):
        with without_kernels():
            assert on(platform)(KERNELS, length) == (BlockwiseAttention, ("many", "packed"))
        assert on(platform)(KERNELS, length)[1] == ("kernel",)


def test_on_a_tpu_by_what_splash_has():
    choose = on("tpu")
    capped = dataclasses.replace(KERNELS, cap=30.0)
    assert choose(capped, 2048, "float32") == (SplashAttention, ("kernel",))
    assert choose(KERNELS, 2000) == (BlockwiseAttention, ("many", "rows"))
    assert choose(KERNELS, 2048, bias=BIAS) == (BlockwiseAttention, ("many", "bias"))


def test_a_bias_that_is_made_for_whole_rows_is_added_by_einsum():
    def whole(query, key):
        return 0

    for platform, reasons in (("cpu", ("whole",)), ("gpu", ("whole", "bias"))):
        assert on(platform)(KERNELS, 4096, bias=whole) == (EinsumAttention, reasons)


def test_rows_that_the_mesh_splits_are_attended_to_in_blocks():
    for platform in ("gpu", "tpu"):
        found = on(platform, data=2, sequence=4)(KERNELS, 4096)
        assert found == (BlockwiseAttention, ("many", "split"))


def test_explicit_axes_have_plain_products():
    found = on("cpu", axis_type=AxisType.EXPLICIT)(AutoAttention(), 4096)
    assert found == (EinsumAttention, ("explicit",))


@pytest.mark.parametrize("length", [64, 600])
def test_it_attends_as_einsum_does(length, draw, distance):
    tokens = Tokens.single(1, length)
    keys = DropoutKeys.of_tokens(jax.random.key(3), tokens.segments_BL, tokens.positions_BL)
    arrays = [draw(1, length, 2, 8) for _ in range(3)]
    settings = Window(50), 0.5, 0.9, 0.2
    arguments = *arrays, tokens, tokens, keys, Alibi(num_heads=2)
    found = jax.jit(lambda: AutoAttention(*settings)(*arguments))()
    assert distance(found, jax.jit(lambda: EinsumAttention(*settings)(*arguments))()) < 1e-6


def test_documents_are_limited_only_where_cudnn_may_be_chosen():
    cpu = jax.devices()[0]
    assert KERNELS.document_limit(cpu) is None
    gpu = type("Gpu", (), {"platform": "gpu", "device_kind": "H100", "compute_capability": "9.0"})
    assert dataclasses.replace(KERNELS, max_documents=3).document_limit(gpu) == 3
    assert dataclasses.replace(KERNELS, cap=30.0).document_limit(gpu) is None
    assert AutoAttention().document_limit(gpu) is None


@pytest.fixture(scope="module")
def graph():
    word = f"{CORE}:=luthier.layers.AutoAttention(kernels=True)"
    return graphs.apply(graphs.resolve("configs.lm.quickstart"), [word])


def test_a_plan_records_the_choice_and_its_reason(graph):
    plan = planner.make(graph, jax.devices()[:1])
    recorded = json.loads(json.dumps(plan.to_dict()))["attention_cores"]
    assert recorded == {"EinsumAttention": "the scores are few enough to be kept"}
    plain = graphs.apply(graph, [f"{CORE}=EinsumAttention()"])
    assert planner.make(plain, jax.devices()[:1]).attention_cores == {}


@pytest.mark.parametrize(
    ("slice", "overrides", "expected"),
    [
        ("h100:8", ["fiddler:bf16"], {"CudnnAttention": CHOICE_REASONS["kernel"]}),
        (
            "h100:8",
            [],
            {"EinsumAttention": f"{CHOICE_REASONS['few']}; {CHOICE_REASONS['dtype']}"},
        ),
        ("v5e-8", ["data.length=256"], {"SplashAttention": CHOICE_REASONS["kernel"]}),
    ],
    ids=str,
)
def test_a_plan_for_absent_devices_has_the_cores_of_those(slice, overrides, expected, graph):
    target = planner.targets.read(slice)
    with abstract_forms():
        report = planner.plan_here(graphs.apply(graph, overrides), target, level="shapes")
    assert report.attention_cores == expected
