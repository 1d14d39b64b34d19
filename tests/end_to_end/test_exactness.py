"""Ways to compute the same step: none of them changes the gradient."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from luthier import graph as graphs

HIGHEST = "precision.matmul=highest"
DROPOUT = "model.block.dropout=partial:luthier.layers.Dropout(rate=0.3)"
UNROLLED = "model.stack=luthier.layers.Unrolled()"
WAYS = {
    "accumulation 2": ("training.accumulation=2",),
    "accumulation 8": ("training.accumulation=8",),
    "chunked cross-entropy": ("task.chunking=luthier.losses.Chunked(8)",),
    "uneven chunks": ("task.chunking=luthier.losses.Chunked(12)",),
    "fused cross-entropy": ("task.chunking=luthier.losses.Fused(12)",),
    "full remat": ("model.stack=luthier.layers.Scanned(remat=luthier.layers.FullRemat())",),
    "saved projections": (
        "model.stack=luthier.layers.Scanned(remat=luthier.layers.SaveProjections())",
    ),
    "all of them": (
        "training.accumulation=4",
        "task.chunking=luthier.losses.Chunked(8)",
        "model.stack=luthier.layers.Scanned(remat=luthier.layers.FullRemat())",
    ),
}


def by_layer(arrays):
    """Return unrolled parameters under the names and shapes of scanned ones."""
    found, layers = {}, {}
    for name, array in arrays.items():
        parts = name.split(".")
        if parts[0] == "blocks" and parts[1].isdigit():
            layers.setdefault(".".join([parts[0], *parts[2:]]), {})[int(parts[1])] = array
        else:
            found[name] = array
    stacked = {n: np.stack([np.asarray(a[i]) for i in sorted(a)]) for n, a in layers.items()}
    return found | stacked


@pytest.fixture(scope="module", params=[0.0, 0.3], ids=["no dropout", "dropout"])
def plain(request, shrunk, case, enough_tokens):
    """The whole batch at once, scanned, with and without dropout."""
    overrides = (
        HIGHEST,
        *enough_tokens,
        f"model.block.dropout=partial:luthier.layers.Dropout(rate={request.param})",
    )
    return overrides, case(shrunk(*overrides))


@pytest.fixture(scope="module")
def batch(plain, uneven_batch):
    return uneven_batch(plain[1].batches(1)[0])


@pytest.fixture(scope="module")
def reference(plain, batch):
    return plain[1].gradient(batch)


@pytest.mark.full
@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS.keys())
def test_the_gradient_does_not_depend_on_the_way(
    plain, batch, reference, shrunk, case, relative, way
):
    overrides, scanned = plain
    changed = case(shrunk(*overrides, *way))
    parameters = _parameters(changed)
    for name, array in _parameters(scanned).items():
        np.testing.assert_array_equal(parameters[name], array, err_msg=name)
    assert relative(changed.gradient(batch), reference) < 1e-6


@pytest.mark.full
def test_dropout_is_on_in_the_cases_that_have_it(shrunk, case, uneven_batch, relative):
    without = case(shrunk(HIGHEST))
    batch = uneven_batch(without.batches(1)[0])
    with_dropout = case(shrunk(HIGHEST, DROPOUT))
    assert relative(with_dropout.gradient(batch), without.gradient(batch)) > 0.1


@pytest.mark.full
def test_scanned_and_unrolled_layers_agree(plain, batch, reference, shrunk, case, relative):
    overrides, scanned = plain
    unrolled = case(shrunk(*overrides, UNROLLED))
    parameters = by_layer(_parameters(unrolled))
    for name, array in _parameters(scanned).items():
        np.testing.assert_array_equal(parameters[name], array, err_msg=name)
    assert relative(by_layer(unrolled.gradient(batch)), reference) < 1e-6


RECIPES = {
    "adamw": (),
    "sgd": ("optimizer:=luthier.optim.sgd(luthier.optim.Constant(0.1), momentum=0.9)",),
}


@pytest.mark.full
@pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES.keys())
def test_the_update_of_scanned_and_unrolled_layers_agrees(shrunk, case, relative, recipe):
    scanned, unrolled = case(shrunk(HIGHEST, *recipe)), case(shrunk(HIGHEST, UNROLLED, *recipe))
    batches = scanned.batches(1)
    before = _parameters(scanned)
    found = {}
    for name, one in {"scanned": scanned, "unrolled": unrolled}.items():
        state = one.steps(batches)[0]
        after = {n.partition("/")[2]: a for n, a in state.items() if n.startswith("parameters/")}
        found[name] = {n: np.asarray(a) - before[n] for n, a in by_layer(after).items()}
    assert relative(found["unrolled"], found["scanned"]) < 1e-6


@pytest.mark.full
@settings(max_examples=4, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 70), min_size=40, max_size=56),
    rate=st.sampled_from([0.0, 0.3]),
    seed=st.integers(0, 99),
)
def test_packed_and_unpacked_documents_have_the_same_gradient(
    shrunk, case, relative, tmp_path_factory, lengths, rate, seed
):
    rng = np.random.default_rng(seed)
    path = tmp_path_factory.mktemp("documents") / "text.jsonl"
    words = ["".join(chr(c) for c in rng.integers(97, 123, size)) for size in lengths]
    path.write_text("".join(f'{{"text": "{word}"}}\n' for word in words))
    found = {}
    for packing in ("FirstFit", "Unpacked"):
        source = f"data.source:=luthier.data.JsonLines({str(path)!r}, field='text')"
        graph = shrunk(HIGHEST, source, f"data.packing:=luthier.data.{packing}()")
        rows = graphs.build(graph).data.num_rows
        size = f"training.global_batch_size={rows}"
        dropout = f"model.block.dropout=partial:luthier.layers.Dropout(rate={rate})"
        one = case(graphs.apply(graph, [size, dropout]))
        data = one.program.experiment.data
        (whole,) = data.batches(global_batch_size=rows)
        found[packing] = one.gradient(whole), rows
    assert found["FirstFit"][1] <= found["Unpacked"][1]
    assert relative(found["FirstFit"][0], found["Unpacked"][0]) < 1e-6


@pytest.mark.full
def test_a_mean_of_means_would_be_seen(plain, batch, reference, relative):
    """The check itself: what other trainers do on this batch is far outside the tolerance."""
    _, one = plain
    halves = [{n: x[i::2] for n, x in batch.items()} for i in range(2)]
    doubled = [{n: np.concatenate([x, x]) for n, x in half.items()} for half in halves]
    parts = [one.gradient(half) for half in doubled]
    mean = {name: (parts[0][name] + parts[1][name]) / 2 for name in reference}
    assert relative(mean, reference) > 1e-3


def _parameters(one):
    state = one.program.named(one.init())
    start = "parameters/"
    return by_layer({n[len(start) :]: a for n, a in state.items() if n.startswith(start)})
