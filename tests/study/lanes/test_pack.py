import jax
import numpy as np
import pytest

from luthier import program as programs
from luthier.errors import ValidationError
from luthier.study.engines.packed_trials import LaneVector, Pack, compile_lanes

HOIST = ("optimizer.learning_rate.peak", "optimizer.b2", "seed")


@pytest.fixture(scope="module")
def program(tiny):
    """Return the program of one trial on one device."""
    return programs.make(tiny(), jax.devices()[:1], HOIST)


def _batch(program, seed):
    rows = next(iter(program.experiment.data.iterator(global_batch_size=4, seed=seed)))
    return {n: jax.device_put(rows[n], s.sharding) for n, s in program.batch.items()}


@pytest.mark.full
@pytest.mark.parametrize("lanes", ["vmap", "map", "shard"])
def test_the_first_update_of_a_lane_is_that_of_the_step_alone(program, tiny, lanes):
    graphs = [tiny(f"{HOIST[0]}={0.01 * i}", f"seed={i}") for i in (1, 2)]
    pack = Pack(compile_lanes(program, lanes, 2, jax.devices()[:2]))
    step, expected = program.compile_step(), []
    for lane, graph in enumerate(graphs):
        values = program.values(graph)
        lane_step = pack.train_step(lane)
        leaves = lane_step.leaves(lane_step.load(values, program.init(values)))
        for own, wanted in zip(leaves, program.init(values), strict=True):
            np.testing.assert_array_equal(own, wanted)
        expected.append(step(values, program.init(values), _batch(program, lane)))
    vectors = pack.step({lane: _batch(program, lane) for lane in (0, 1)})
    for lane, (leaves, vector) in enumerate(expected):
        np.testing.assert_allclose(np.asarray(LaneVector(vectors, lane)), vector, rtol=1e-6)
        for name, own, wanted in zip(program.names, pack.leaves(lane), leaves, strict=True):
            apart = np.linalg.norm(np.float64(own) - np.float64(wanted))
            assert apart <= 1e-6 * max(np.linalg.norm(np.float64(wanted)), 1e-30), name


@pytest.mark.full
@pytest.mark.parametrize("lanes", ["map", "shard"])
def test_a_lane_without_a_trial_is_not_computed(program, lanes):
    pack, values = Pack(compile_lanes(program, lanes, 2, jax.devices()[:2])), program.values()
    for lane in (0, 1):
        pack.load(lane, values, program.init(values))
    pack.step({1: _batch(program, 0)})
    (name,) = [i for i, n in enumerate(program.names) if n == "step"]
    assert [int(pack.leaves(lane)[name]) for lane in (0, 1)] == [0, 1]


@pytest.mark.full
def test_what_is_compiled_is_shared_by_all_graphs_of_the_program(program, tiny):
    devices = jax.devices()[:1]
    packed = compile_lanes(program, "map", 2, devices)
    assert compile_lanes(program.of(tiny("seed=9")), "map", 2, devices) is packed
    assert compile_lanes(program, "map", 3, devices) is not packed
    assert packed.step_bytes > 0


def test_lanes_that_cannot_be_shared_out_are_refused(program):
    with pytest.raises(ValidationError) as caught:
        compile_lanes(program, "shard", 3, jax.devices()[:2])
    assert str(caught.value) == ("packing.num_lanes: 3 lanes cannot be split over 2 devices")
