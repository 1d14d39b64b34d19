"""What policies of precision change in training, and what they do not."""

import numpy as np
import pytest

from luthier import graph as graphs
from luthier import trainer
from luthier.checkpoint import Store
from luthier.errors import BadInput
from luthier.program import materialize
from tests.compiling import quick_step

SHELVES = ("luthier.recipes",)
STEPS = 40
LAST = 10
# Policies, and how far the mean loss of the last steps may be from that of float32, as a share of
# it. Another seed is 0.1 % away.
BOUNDS = {
    "bf16": (("fiddler:bf16",), 5e-4),
    "int8": (("fiddler:int8",), 1e-3),
    "fp8": (("fiddler:fp8",), 5e-3),
    "masters": (("fiddler:bf16_masters",), 5e-4),
    "int8 gradients": (("fiddler:int8(gradient=int8)",), 1e-3),
    "bf16 and fp8": (("fiddler:bf16", "fiddler:fp8"), 5e-3),
    "masters, int8, moments": (
        ("fiddler:bf16_masters", "fiddler:int8", "fiddler:store_optimizer(bfloat16)"),
        1e-2,
    ),
}
ORDINARY = ("bf16", "int8", "fp8")
CASES = [pytest.param(name, marks=() if name in ORDINARY else pytest.mark.slow) for name in BOUNDS]


@pytest.fixture(scope="module")
def make(shrunk, case):
    def make(*overrides, num_devices=1):
        return case(graphs.apply(shrunk(), overrides, shelves=SHELVES), num_devices)

    return make


def steps(case, batches, leaves=None):
    """Train with the machine code of tests; return the state and the losses."""
    step = case.program.once("quick step", lambda: quick_step(case.program))
    leaves, losses = case.init() if leaves is None else leaves, []
    index = case.program.scalar_names.index("loss")
    for batch in batches:
        leaves, vector = step(case.values, leaves, case.put(batch))
        losses.append(float(vector[index]))
    return case.program.named(leaves), losses


def last_loss(case, batches):
    losses = steps(case, batches)[1]
    assert losses[0] > 5.5
    return np.mean(losses[-LAST:])


@pytest.fixture(scope="module")
def batches(make):
    return make().batches(STEPS)


@pytest.fixture(scope="module")
def reference(make, batches):
    return last_loss(make(f"training.steps={STEPS}"), batches)


@pytest.mark.full
@pytest.mark.parametrize("policy", CASES)
def test_training_stays_near_that_of_float32(policy, make, batches, reference):
    words, bound = BOUNDS[policy]
    found = last_loss(make(f"training.steps={STEPS}", *words), batches)
    assert found != reference
    assert abs(found / reference - 1) < bound


ALL = (
    "fiddler:bf16_masters",
    "fiddler:store_optimizer(bfloat16, 'first_moment')",
    "fiddler:sum_gradients(bfloat16, 'mlp')",
    "fiddler:fp8",
    "training.accumulation=2",
    "training.ema:=luthier.optim.Ema(decay=0.9)",
)


@pytest.mark.full
def test_a_run_goes_on_to_the_last_bit(make, batches, tmp_path):
    policy = make(*ALL)
    once, losses = steps(policy, batches[:4])
    once = {name: np.asarray(array) for name, array in once.items()}
    half, _ = steps(policy, batches[:2])
    with Store(tmp_path) as store:
        store.save(2, half)
    with Store(tmp_path) as store:
        leaves = materialize(policy.program, policy.values, store=store, step=2)
    again, later = steps(policy, batches[2:4], leaves)
    assert later == losses[2:]
    for name, array in again.items():
        assert array.dtype == once[name].dtype, name
        np.testing.assert_array_equal(np.asarray(array), once[name], err_msg=name)


EXPERTS = (
    "model.block.mlp=Experts(num_experts=4, router=TopK(k=2), expert=GatedMlp(hidden_dim=32))",
    "model.block.mlp.dispatch=Dropless()",
)
# How the work is split, and what the model is; each on two devices.
WAYS = {
    "fsdp": ((), ("fiddler:fsdp(2)",)),
    "tensor": ((), ("fiddler:tensor(2)",)),
    "pipeline": ((), ("fiddler:pipeline(stages=2, microbatches=4)",)),
    "experts": (EXPERTS, ("fiddler:expert(2)",)),
    "remat": ((), ("fiddler:remat",)),
}


BY_DAY = (("tensor", "int8"), ("pipeline", "fp8"), ("experts", "int8"))
SHARED_OUT = [
    pytest.param(way, product, marks=() if (way, product) in BY_DAY else pytest.mark.slow)
    for way in WAYS
    for product in ("int8", "fp8")
]


@pytest.mark.full
@pytest.mark.parametrize(("way", "product"), SHARED_OUT)
def test_however_the_work_is_shared_out(way, product, make, batches):
    model, words = WAYS[way]
    model = ("precision.matmul=highest", *model, f"fiddler:{product}")
    _, expected = steps(make(*model), batches[:4])
    _, found = steps(make(*model, *words, num_devices=1 if way == "remat" else 2), batches[:4])
    # A number between two of eight bits may go to the other one where a sum is in another order.
    np.testing.assert_allclose(found, expected, rtol=1e-4)


@pytest.mark.full
def test_adapters_learn_beside_frozen_kernels_of_eight_bits(make, batches):
    adapted = make("fiddler:bf16_masters", "fiddler:lora(rank=2)", "fiddler:int8")
    before = adapted.program.named(adapted.init())
    after, losses = steps(adapted, batches[:3])
    moved = {
        name.removeprefix("parameters/")
        for name, array in after.items()
        if name.startswith("parameters/") and (np.asarray(array) != np.asarray(before[name])).any()
    }
    masters = {n.removeprefix("optimizer/masters/") for n in after if "masters/" in n}
    assert moved
    assert moved <= masters
    assert all(".lora_" in name for name in masters)
    assert np.isfinite(losses).all()


def test_a_trained_model_is_evaluated_with_weights_of_eight_bits(shrunk, tmp_path):
    small = ("training.steps=6", "evaluations.held_out.every.count=6")
    few = "evaluations.held_out.data.source=luthier.data.TextFiles("
    text = tmp_path / "text.txt"
    text.write_text("To be, or not to be, that is the question.\n" * 60)
    source = f"{few}{str(text)!r})"
    graph = shrunk(*small, source, directory=str(tmp_path / "runs"))
    result = trainer.run(graph)
    where = {"run": result.directory.name, "root": str(tmp_path / "runs"), "shelves": SHELVES}
    (plain,) = result.metrics.values()
    for words, bound in ((["fiddler:int8_weights"], 1e-3), (["fiddler:int8"], 1e-2)):
        _, metrics = trainer.evaluate_run(**where, overrides=words)
        for metric, value in metrics["held_out"].items():
            if metric == "loss":
                assert 0 < abs(value / plain[metric] - 1) < bound
    with pytest.raises(BadInput, match=r"parameters/norm\.scale") as raised:
        trainer.evaluate_run(**where, overrides=["fiddler:store_parameters(bfloat16)"])
    assert "bfloat16" in str(raised.value)
