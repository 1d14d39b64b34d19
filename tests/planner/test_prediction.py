import dataclasses
import json
import types

import jax
import pytest

import luthier
from luthier import graph as graphs
from luthier.errors import ValidationError
from luthier.planner import Measurement, Prediction, predict, require_fit, sharing
from luthier.planner.compiled import memory_of
from luthier.records import Notice, Step

PREDICTION = Prediction(
    held_bytes=3 * 2**20,
    gradient_bytes=2**20,
    limit_bytes=2**30,
    step_seconds=0.02,
    binding="links",
)


class _Compiled:
    """The memory analysis of a step that needs 5 MiB."""

    output_shardings = ()

    def memory_analysis(self):
        return self

    argument_size_in_bytes, output_size_in_bytes, alias_size_in_bytes = 3 * 2**20, 2**20, 2**20
    temp_size_in_bytes, host_argument_size_in_bytes, host_temp_size_in_bytes = 2 * 2**20, 0, 0


def _plan(*words):
    graph = graphs.apply(graphs.resolve("configs.lm.quickstart"), words)
    return luthier.plan(graph, jax.devices()[:2])


def test_shapes_predict_what_is_held_and_the_least_time_of_a_step():
    plan = _plan()
    found = predict(plan)
    kinds = plan.bytes_per_device
    assert found.held_bytes == sum(kinds.values()) - kinds["gradients"]
    assert found.gradient_bytes == kinds["gradients"]
    assert found.binding == "compute"
    assert found.step_seconds > 0
    assert json.loads(json.dumps(found.to_dict()))["limit_bytes"] == found.limit_bytes


@pytest.mark.full
def test_what_cannot_fit_is_refused_with_what_is_largest():
    require_fit(_plan())
    large = ["model.dim=16384", "model.num_layers=96", "model.block.mlp.hidden_dim=65536"]
    plan = _plan(*large)
    limit = luthier.parallel.format_bytes(predict(plan).limit_bytes)
    with pytest.raises(ValidationError) as caught:
        require_fit(plan)
    assert str(caught.value) == (
        "parallelism.mesh: state and batch need 4.2 TiB on each device, which has "
        f"{limit}; most of it is optimizer, 2.8 TiB; "
        "luthier plan REF --slice cpu:2 looks for changes that fit"
    )


def test_a_prediction_is_one_line():
    text = "3.0 MiB held on each device of 1.0 GiB, and 1.0 MiB of gradients"
    assert str(PREDICTION) == f"{text}; a step takes at least 20 ms (links)"
    unknown = Prediction(held_bytes=3 * 2**20, gradient_bytes=2**20, limit_bytes=None)
    assert str(unknown) == "3.0 MiB held on each device, and 1.0 MiB of gradients"
    small = dataclasses.replace(PREDICTION, step_seconds=None, reason="too small to estimate: x")
    assert str(small) == f"{text}; the time of a step is too small to estimate: x"


def test_steps_are_measured_after_the_first_ones():
    seen, measured = [], Measurement()
    emit = measured.watching(seen.append)
    assert measured.to_dict(None) == {}
    for step, seconds in enumerate([9.0, 7.0, 0.03, 0.05, 0.04], 1):
        emit(Step(step, {"step_seconds": seconds, "memory_bytes": step * 2.0**20}))
    emit(Notice("kept"))
    assert seen[-1] == Notice("kept")
    found = measured.to_dict(memory_of(_Compiled()))
    assert found == {
        "num_steps": 3,
        "step_seconds": 0.04,
        "memory_bytes": 5 * 2**20,
        "compiled_bytes_per_device": 5 * 2**20,
    }


def test_virtual_devices_share_the_memory_of_their_process():
    assert sharing(jax.devices()[:2]) == 2
    assert sharing([types.SimpleNamespace(platform="gpu", process_index=0)]) is None
