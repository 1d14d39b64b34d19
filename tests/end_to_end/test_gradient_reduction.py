"""Each device adds up the gradient of its own rows, and the mesh reduces it once a step."""

import pytest

from luthier.planner import plan_apart
from tests.compiling import gradient

WORDS = (
    "precision.matmul=highest",
    "model.num_layers=4",
    "model.block.attention.num_heads=8",
    "model.block.attention.num_kv_heads=4",
    "model.block.dropout=partial:luthier.layers.Dropout(rate=0.2)",
)
EXPERTS = (
    "model.block.mlp=Experts(num_experts=4, router=TopK(k=2), expert=GatedMlp(hidden_dim=32))",
    "model.block.mlp.dispatch=Dropless()",
)
PIPELINE = "fiddler:pipeline(stages=2, microbatches=4)"
# The words that spread the work over eight devices, and the axes that split nothing but rows.
MESHES = {
    "data": (("fiddler:data(8)", "training.accumulation=4"), {"data"}),
    "replica fsdp": (("fiddler:hsdp(2)", "training.accumulation=4"), {"replica"}),
    "data tensor": (("fiddler:tensor(2)", "training.accumulation=2"), {"data"}),
    "data residual": (
        ("fiddler:tensor(2, sequence_parallel=True)", "training.accumulation=2"),
        {"data"},
    ),
    "data expert": ((*EXPERTS, "fiddler:expert(4)", "training.accumulation=4"), {"data"}),
    "pipeline data": ((PIPELINE,), {"data"}),
    "pipeline data fsdp": ((PIPELINE, "fiddler:fsdp(2)", "parallelism.mesh.data=2"), {"data"}),
    "pipeline fsdp": ((PIPELINE, "fiddler:fsdp(4)", "model.stack.gather=step"), {"fsdp"}),
}
OFTEN = ("data expert", "pipeline data fsdp")
NAMES = [pytest.param(n, marks=() if n in OFTEN else pytest.mark.slow, id=n) for n in MESHES]


@pytest.mark.full
@pytest.mark.parametrize("name", NAMES)
def test_the_mesh_reduces_gradients_once(shrunk, enough_tokens, name):
    words, axes = MESHES[name]
    graph = shrunk(*WORDS, *enough_tokens, *words, "evaluations={}")
    plan = plan_apart(graph, "cpu:8").to_dict()
    found = [c for c in plan["collectives"] if c["kind"] in ("all-reduce", "reduce-scatter")]
    reduced = sum(c["num_bytes"] for c in found if axes & set(c["axes"]))
    # Parameters of a device are those of its stage or its part; `gather=step` makes parts whole.
    # Pipelines also reduce the gradient of the embedding, which is of all stages.
    gathered = 4 if "gather=step" in words[-1] else 1
    share = reduced / (gathered * plan["memory"]["bytes_per_device"]["parameters"])
    assert 0.9 < share < (1.7 if "pipeline" in name else 1.1)


@pytest.mark.full
@pytest.mark.parametrize("name", NAMES)
def test_the_gradient_is_that_of_one_device(
    shrunk, enough_tokens, case, relative, uneven_batch, name
):
    words, _ = MESHES[name]
    experts = EXPERTS if "expert" in name else ()
    one = case(shrunk(*WORDS, *experts, *enough_tokens))
    many = case(shrunk(*WORDS, *enough_tokens, *words), 8)
    leaves, batch = one.init(), uneven_batch(one.batches(1)[0])
    assert relative(gradient(many, batch, leaves), gradient(one, batch, leaves)) < 2e-6
