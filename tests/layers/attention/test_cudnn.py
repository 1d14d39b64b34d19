"""cuDNN's attention: what it is told of documents, its abstract form, and what it refuses.

The kernel itself runs on a GPU only. Elsewhere a stand-in does what cuDNN says it does with
lengths and offsets, and leaves NaN where cuDNN leaves what was there before.
"""

import json
import math
import re
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax._src.cudnn import fused_attention_stablehlo as cudnn
from jax.sharding import NamedSharding, PartitionSpec

from luthier import graph as graphs
from luthier import program as programs
from luthier.errors import BadInput, ValidationError
from luthier.layers import (
    Alibi,
    Causal,
    CudnnAttention,
    EinsumAttention,
    SameDocument,
    Window,
    abstract_forms,
)
from luthier.layers.attention.cudnn import documents_of, largest_head
from luthier.parallel import Mesh, Rules, activation_rules
from luthier.tasks import Flops
from luthier.tasks import count_flops as count

MASKS = [Causal(), Window(5), SameDocument()]
MOST_BY_NIGHT = [
    pytest.param(mask, id=type(mask).__name__, marks=() if mask == Window(5) else pytest.mark.slow)
    for mask in MASKS
]
ROWS = [[7, 1, 20], [32], [], [3, 30]]
LENGTH = 40


def _documents_from_lengths(q_seqlen, kv_seqlen, q_offsets, length):
    """Return the number of the document of every token, as lengths and offsets tell it."""
    assert q_seqlen is kv_seqlen
    lengths = q_seqlen if q_seqlen.ndim == 2 else q_seqlen[:, None]
    starts = jnp.zeros_like(lengths) if q_offsets is None else q_offsets[:, :-1]
    places = jnp.arange(length)
    is_own = (places >= starts[..., None]) & (places < (starts + lengths)[..., None])
    is_own &= (lengths > 0)[..., None]
    return jnp.where(is_own.any(1), is_own.argmax(1) + 1, 0)


@jax.custom_vjp
def _read(x, is_read):
    """Read some places; the gradient of the others is what was there before."""
    return jnp.where(is_read, x, 0)


_read.defvjp(
    lambda x, is_read: (_read(x, is_read), is_read),
    lambda is_read, change: (jnp.where(is_read, change, jnp.nan), None),
)


def stand_in(query, key, value, **options):
    """Attend as cuDNN says that it does."""
    assert options["kv_offsets"] is options["q_offsets"]
    number = _documents_from_lengths(
        options["q_seqlen"], options["kv_seqlen"], options["q_offsets"], query.shape[1]
    )
    is_read = (number > 0)[:, :, None, None]
    places = jnp.arange(query.shape[1])
    distance = places[:, None] - places
    sees = (number[:, :, None] == number[:, None]) & (number > 0)[:, None]
    if options["mask_type"] is cudnn.MaskType.PADDING_CAUSAL:
        sees &= distance >= 0
    if options["sliding_window_length"] is not None:
        sees &= distance < options["sliding_window_length"]
    arrays = [_read(x, is_read) for x in (query, key, value)]
    found = jax.nn.dot_product_attention(*arrays, mask=sees[:, None], scale=options["scale"])
    return jnp.where(is_read, found, jnp.nan)


@pytest.fixture
def no_kernel(monkeypatch):
    monkeypatch.setattr(cudnn, "dot_product_attention", stand_in)


def _inputs(draw, num_kv_heads=2, rows=4, length=LENGTH):
    shapes = (4, num_kv_heads, num_kv_heads)
    return [draw(rows, length, heads, 16).astype(jnp.bfloat16) for heads in shapes]


def _with_gradients(core, arrays, tokens):
    def loss(*arrays):
        context = core(*arrays, tokens, tokens).astype(jnp.float32)
        return (context * jnp.cos(jnp.arange(context.size)).reshape(context.shape)).sum(), context

    (_, context), gradients = jax.jit(jax.value_and_grad(loss, (0, 1, 2), has_aux=True))(*arrays)
    return [context, *(x.astype(jnp.float32) for x in gradients)]


def _check_equal(core, arrays, tokens, distance, limit=0.01):
    expected = _with_gradients(EinsumAttention(core.mask, core.scale), arrays, tokens)
    for one, other in zip(_with_gradients(core, arrays, tokens), expected, strict=True):
        assert distance(one, other) < limit


@pytest.mark.full
def test_where_documents_stand(pack):
    found = documents_of(pack(ROWS, LENGTH).segments_BL, 3)
    assert found.lengths_BM.tolist() == [[7, 1, 20], [32, -1, -1], [-1, -1, -1], [3, 30, -1]]
    assert found.offsets_BN.tolist() == [[0, 7, 8, -1], [0, -1, -1, -1], [-1] * 4, [0, 3, -1, -1]]
    assert found.fits_B.all()
    assert documents_of(pack(ROWS, LENGTH).segments_BL, 2).fits_B.tolist() == [False, *[True] * 3]


def test_padding_may_stand_between_documents():
    found = documents_of(jnp.asarray([[0, 2, 2, 0, 1, 7]]), 4)
    assert found.lengths_BM.tolist() == [[2, 1, 1, -1]]
    assert found.offsets_BN.tolist() == [[1, 4, 5, -1, -1]]


def test_a_single_document_starts_with_its_row():
    found = documents_of(jnp.asarray([[1, 1, 0], [0, 1, 1], [1, 2, 2], [0, 0, 0]]), 1)
    assert found.lengths_BM[:, 0].tolist()[:2] == [2, 2]
    assert found.fits_B.tolist() == [True, False, False, True]


@pytest.mark.full
@pytest.mark.parametrize("mask", MOST_BY_NIGHT)
def test_document_offsets_give_the_same_attention(mask, draw, pack, distance, no_kernel):
    _check_equal(CudnnAttention(mask, 0.3, 3), _inputs(draw), pack(ROWS, LENGTH), distance)


@pytest.mark.slow
def test_rows_of_one_document_need_no_offsets(draw, pack, distance, no_kernel):
    tokens = pack([[40], [33], [], [1]], LENGTH)
    _check_equal(CudnnAttention(max_documents=1), _inputs(draw, 1), tokens, distance)


def test_a_row_of_too_many_documents_is_never_a_wrong_number(draw, pack, no_kernel):
    tokens = pack(ROWS, LENGTH)
    found = jax.jit(CudnnAttention(max_documents=2))(*_inputs(draw), tokens, tokens)
    is_nan = jnp.isnan(found).reshape(len(ROWS), -1)
    assert is_nan.all(1).tolist() == [True, False, False, False]
    assert is_nan.any(1).tolist() == [True, False, False, False]


@pytest.mark.slow
def test_heads_of_keys_are_repeated_where_offsets_count_those_of_queries(
    draw, pack, distance, monkeypatch
):
    """The stand-in is told by the number of heads that it sees."""
    seen = []

    def spy(query, key, value, **options):
        seen.append(key.shape[2])
        return stand_in(query, key, value, **options)

    monkeypatch.setattr(cudnn, "dot_product_attention", spy)
    tokens = pack(ROWS, LENGTH)
    for counts, heads in ((True, 2), (False, 4)):
        monkeypatch.setattr("luthier.layers.attention.cudnn._COUNTS_KEY_HEADS", counts)
        _check_equal(CudnnAttention(max_documents=3), _inputs(draw), tokens, distance)
        assert set(seen) == {heads}
        seen.clear()


@pytest.mark.parametrize(
    "mask", [pytest.param(Causal(), marks=pytest.mark.slow), Window(100)], ids=["causal", "window"]
)
def test_the_abstract_form_is_the_same_attention_in_blocks(mask, draw, pack, distance):
    # A whole number of blocks, and not.
    for length in (256, 300):
        tokens = pack([[100, 30, 50], [length]], length)
        core, arrays = CudnnAttention(mask), _inputs(draw, rows=2, length=length)
        with abstract_forms():
            _check_equal(core, arrays, tokens, distance)
            text = str(jax.make_jaxpr(lambda *x, c=core, t=tokens: c(*x, t, t))(*arrays))
        assert f"{length},{length}" not in text  # no scores of all pairs


@pytest.mark.parametrize(("data", "tensor", "constraints"), [(1, 1, 8), (4, 2, 8), (2, 4, 0)])
def test_the_abstract_form_takes_and_gives_arrays_as_the_kernel_does(
    data, tensor, constraints, draw, pack, distance
):
    """Row by row: not in layouts that suit its products. Heads that the mesh does not divide stay
    as they are, because the compiler would gather them."""
    mesh = Mesh(data=data, tensor=tensor).arrange(jax.devices()[: data * tensor])
    core, arrays, tokens = CudnnAttention(), _inputs(draw), pack(ROWS, LENGTH)
    with activation_rules(mesh, Rules()), abstract_forms():
        split = NamedSharding(mesh, PartitionSpec("data", None, "tensor" if constraints else None))
        arrays = [jax.device_put(x, split) for x in arrays]
        _check_equal(core, arrays, tokens, distance)
        of_core = jax.jit(lambda *x: _with_gradients(core, x, tokens)).trace(*arrays)
        text = of_core.lower().compile().as_text()
    assert str(of_core.jaxpr).count("layout_constraint[") == constraints
    assert "all-gather" not in text or not constraints


def test_few_new_tokens_are_attended_from_by_products(draw, pack, distance):
    tokens = pack([[9]], 9)
    new = jax.tree.map(lambda x: x[:, 8:], tokens)
    query, key, value = _inputs(draw, rows=1, length=9)
    found = jax.jit(CudnnAttention())(query[:, 8:], key, value, new, tokens)
    expected = jax.jit(EinsumAttention())(query, key, value, tokens, tokens)[:, 8:]
    assert distance(found.astype(jnp.float32), expected.astype(jnp.float32)) < 0.01


@pytest.mark.parametrize("mask", [Causal(), Window(64), SameDocument()])
def test_flops_of_the_kernel_and_of_its_abstract_form_are_the_same(mask, pack, draw, monkeypatch):
    monkeypatch.setattr(cudnn, "check_cudnn_version", lambda: 91_000)
    monkeypatch.setattr(cudnn, "check_is_flash_attention", lambda *_, **__: None)
    tokens, arrays = pack([[256]], 256), _inputs(draw, 4, 1, 256)
    core = CudnnAttention(mask)
    products = 2 * 2 * 4 * 256 * 256 * 16
    share = {Causal: 1 / 2, Window: 64 / 256 - 64**2 / 2 / 256**2}.get(type(mask), 1)
    expected = Flops(batched=products, hidden=products - math.floor(products * share))
    assert count(jax.make_jaxpr(lambda *x: core(*x, tokens, tokens))(*arrays)) == expected
    with abstract_forms():
        assert count(jax.make_jaxpr(lambda *x: core(*x, tokens, tokens))(*arrays)) == expected


CALL = re.compile(r"stablehlo\.custom_call @(\S+)\((.*?)\) \{(.*?)\} : \((.*?)\) -> \((.*)\)")


def _calls(core, num_kv_heads, draw, pack):
    """Return the kernels that a pass there and back asks a Hopper for: name, settings, types."""
    arrays, tokens = _inputs(draw, num_kv_heads, 2, 256), pack([[70, 186], [256]], 256)

    def loss(*arrays):
        return core(*arrays, tokens, tokens).astype(jnp.float32).sum()

    traced = jax.jit(jax.grad(loss, (0, 1, 2))).trace(*arrays)
    found = []
    for name, _, attributes, given, made in CALL.findall(
        traced.lower(lowering_platforms=("cuda",)).as_text()
    ):
        if "cudnn" in name:
            (text,) = re.findall(r'backend_config = "(.*?)", ', attributes)
            settings = json.loads(text.replace("\\22", '"'))["cudnn_fmha_backend_config"]
            types = [re.findall(r"tensor<(.*?)>", side) for side in (given, made)]
            found.append((name.replace("\\24", "$").strip('"'), settings, *types))
    return found


@pytest.fixture
def hopper(monkeypatch):
    """Lower as for a GPU of compute capability 9.0 with cuDNN 9.10."""
    monkeypatch.setattr(cudnn, "check_cudnn_version", lambda: 91_000)
    monkeypatch.setattr(cudnn, "check_compute_capability", lambda wanted: float(wanted) <= 9.0)


@pytest.mark.parametrize("mask", MASKS, ids=lambda mask: type(mask).__name__)
@pytest.mark.parametrize(
    ("max_documents", "num_kv_heads"), [(1, 4), (1, 2), (3, 4), (3, 1)], ids=str
)
def test_what_a_gpu_is_asked_for(mask, max_documents, num_kv_heads, draw, pack, hopper):
    core = CudnnAttention(mask, max_documents=max_documents)
    there, back = _calls(core, num_kv_heads, draw, pack)
    assert there[0] == "__cudnn$fmhaSoftmax"  # no bias, no dropout
    assert back[0] == "__cudnn$fmhaSoftmaxBackward"
    for _, settings, given, _ in (there, back):
        kind = "PADDING" if mask == SameDocument() else "PADDING_CAUSAL"
        assert settings["mask_type"] == kind
        assert settings["sliding_window_length"] == (5 if mask == Window(5) else 0)
        assert settings["max_seg_per_batch"] == max_documents
        assert settings["dropout_rate"] == 0
        assert settings["fmha_scale"] == 16**-0.5
        assert settings["intermediate_tensor_shape"]["element_type"] == "BF16"
        repeated = max_documents > 1 and jax.__version_info__ < (0, 12)
        heads = 4 if repeated else num_kv_heads
        assert given[:3] == ["2x256x4x16xbf16", *[f"2x256x{heads}x16xbf16"] * 2]
        places = ["2xi32"] * 2 if max_documents == 1 else ["2x3xi32"] * 2 + ["2x4xi32"] * 2
        assert [kind for kind in given if kind.endswith("i32")] == places
    context, statistics, _ = there[3]
    assert (context, statistics) == ("2x4x256x16xbf16", f"{2 * max_documents}x4x256xf32")
    assert not any("256x256" in kind for call in (there, back) for kind in (*call[2], *call[3]))


def test_unsupported_inputs_are_rejected_before_anything_is_compiled(draw, pack):
    tokens = pack([[8]], 8)
    arrays = [draw(1, 8, 2, 12)] * 3
    with pytest.raises(BadInput) as caught:
        CudnnAttention()(*arrays, tokens, tokens, bias=Alibi(num_heads=2))
    assert str(caught.value).splitlines() == [
        "CudnnAttention computes in bfloat16 or float16, not in float32; compute in bfloat16 "
        "(fiddler:bf16), or use BlockwiseAttention",
        "CudnnAttention has no heads of 12; make head_dim a multiple of 8 up to 256, or use "
        "BlockwiseAttention",
        "CudnnAttention adds no bias to scores; drop the bias, or use BlockwiseAttention",
    ]


def test_other_masks_are_refused():
    class Odd:
        pass

    with pytest.raises(BadInput) as caught:
        CudnnAttention(Odd())
    message = "CudnnAttention has no mask Odd; it has Causal, Window and SameDocument; "
    assert str(caught.value) == message + "or use BlockwiseAttention"


def _device(platform, kind, capability):
    return types.SimpleNamespace(platform=platform, device_kind=kind, compute_capability=capability)


def test_devices_that_cannot_run_it():
    one, many = CudnnAttention(max_documents=1), CudnnAttention(max_documents=8)
    hopper, ampere = _device("gpu", "H100", "9.0"), _device("gpu", "A100", "8.0")
    radeon = _device("gpu", "MI300", "gfx942")
    assert one.lacking(hopper) == many.lacking(hopper) == one.lacking(ampere) == ""
    message = "A100 has no cuDNN attention of several documents in a row"
    assert many.lacking(ampere) == message
    assert one.lacking(_device("gpu", "V100", "7.0")) == "V100 has no cuDNN attention"
    assert [largest_head(device) for device in (hopper, ampere)] == [256, 128]
    assert one.lacking(radeon) == "MI300 has no cuDNN"
    assert one.lacking(jax.devices("cpu")[0]) == "cpu has no cuDNN"


def test_an_experiment_on_such_devices_is_refused_at_its_node():
    core = "model.block.attention.core"
    word = f"{core}:=luthier.layers.CudnnAttention()"
    graph = graphs.apply(graphs.resolve("configs.lm.quickstart"), [word])
    with pytest.raises(ValidationError) as caught:
        programs.make(graph, jax.devices()[:1])
    message = f"{core}: cpu has no cuDNN [set by argument 1: {word}]; use BlockwiseAttention"
    assert str(caught.value) == message


@pytest.mark.skipif(jax.default_backend() != "gpu", reason="cuDNN's kernels run on a GPU only")
@pytest.mark.parametrize("mask", MASKS, ids=lambda mask: type(mask).__name__)
@pytest.mark.parametrize("num_kv_heads", [1, 2, 4])
def test_the_kernel_attends_as_products_do(mask, num_kv_heads, draw, pack, distance):
    rows = [[70, 1, 150], [256], [], [3, 250]]
    arrays = _inputs(draw, num_kv_heads, 4, 256)
    core = CudnnAttention(mask, max_documents=4)
    _check_equal(core, arrays, pack(rows, 256), distance, 0.02)
    single = pack([[256], [200], [1], [130]], 256)
    _check_equal(CudnnAttention(mask, max_documents=1), arrays, single, distance, 0.02)
    assert all(np.isfinite(x).all() for x in _with_gradients(core, arrays, pack(rows, 256)))
