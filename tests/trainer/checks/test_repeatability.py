from __future__ import annotations

import itertools

import jax
import numpy as np
import pytest

from luthier import parallel, planner
from luthier.errors import ValidationError
from luthier.program import Program
from luthier.trainer import check_repeatable, checks


@pytest.fixture(scope="module")
def plan(tiny, tmp_path_factory):
    graph = tiny(tmp_path_factory.mktemp("runs"), "evaluations={}")
    return planner.make(graph, jax.devices()[:2])


@pytest.mark.full
def test_steps_on_a_cpu_repeat_themselves(plan):
    report = check_repeatable(plan)
    number = len(plan.program.names) + 1
    assert report == f"2 steps taken twice: all {number} arrays are the same to the last bit"


@pytest.mark.full
def test_one_bit_of_one_shard_is_found(plan, monkeypatch):
    real, calls = checks._shards, itertools.count()
    flipped = len(plan.program.names) + 3  # in the second round

    def shards(array):
        found = real(array)
        if next(calls) == flipped:
            found[-1] = bytes([found[-1][0] ^ 1]) + found[-1][1:]
        return found

    monkeypatch.setattr(checks, "_shards", shards)
    with pytest.raises(ValidationError) as caught:
        check_repeatable(plan)
    name = plan.program.names[2]
    assert str(caught.value) == (
        f"2 steps taken twice differ in {name}; set precision.repeatability=exact, or use "
        "attention without kernels of your own"
    )


def test_equal_bits_are_not_equal_numbers():
    nan = jax.numpy.array([float("nan")])
    assert checks._shards(nan) == checks._shards(nan + 0)
    zeros = jax.numpy.array([0.0]), jax.numpy.array([-0.0])
    assert np.array_equal(*zeros)
    assert checks._shards(zeros[0]) != checks._shards(zeros[1])


@pytest.mark.full
def test_the_options_reach_the_compiler(tiny, tmp_path, monkeypatch):
    """XLA takes the option, for the step, the evaluation and the first state alike.

    The first state is compiled quickly on CPUs, too.
    """
    given = []
    real_compile, real_jit = jax.stages.Lowered.compile, jax.jit

    def spy(lowered, compiler_options=None, **named):
        given.append(dict(compiler_options or {}))
        return real_compile(lowered, compiler_options, **named)

    def spy_jit(*args, **named):
        if "compiler_options" in named:
            given.append(dict(named["compiler_options"]))
        return real_jit(*args, **named)

    monkeypatch.delenv("XLA_FLAGS", raising=False)
    monkeypatch.setattr(jax.stages.Lowered, "compile", spy)
    monkeypatch.setattr(jax, "jit", spy_jit)
    for mode, options in (("exact", {"xla_gpu_deterministic_ops": True}), ("fast", {})):
        graph = tiny(tmp_path, f"precision.repeatability={mode}")
        program: Program = planner.make(graph, jax.devices()[:1]).program
        given.clear()
        program.compile_step()
        program.compile_evaluation(program.batch, "parameters")
        program.init(program.values())
        assert given == [options, options, parallel.quick_cpu_options() | options]
