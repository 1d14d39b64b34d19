"""Options of XLA: they reach the compiler wherever a program is compiled, and bad ones are told."""

import functools
import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from luthier import graph as graphs
from luthier import planner
from luthier import program as programs
from luthier.errors import ValidationError
from luthier.parallel import XlaOptions, quick_cpu_options
from luthier.planner import planning, targets
from luthier.study.engines import packed_trials
from tests.program.test_precision import SMALL

OPTIONS = {"xla_backend_optimization_level": 0, "xla_cpu_enable_fast_math": True}
SET = f"compiler.cpu={OPTIONS}"


def graph_of(*overrides):
    return graphs.apply(graphs.resolve("configs.lm.quickstart"), [*SMALL, *overrides])


def test_only_those_of_the_platform_that_are_set_are_handed_over():
    options = XlaOptions(cpu={"a": 1, "b": None}, gpu={"c": True}, tpu={"d": "x"})
    assert options.of("cpu") == {"a": 1}
    assert options.of("gpu") == {"c": True}
    assert options.of("tpu") == {"d": "x"}
    assert options.of("another") == {}


def test_what_compilers_have_by_default_is_taken():
    options = XlaOptions()
    assert options.of("cpu") == {}
    on_cpu = XlaOptions(cpu=options.of("gpu"))  # XLA has one list of options for both
    assert options.of("gpu")
    assert not on_cpu.refused(jax.devices())


def test_options_change_what_the_compiler_makes():
    """Without its main pass of fusion, a CPU's program falls into smaller pieces."""
    pieces = []
    for word in ((), ("compiler.cpu={'xla_disable_hlo_passes': 'fusion'}",)):
        program = programs.make(graph_of(*word), jax.devices()[:1])
        traced = jax.jit(lambda x: jnp.tanh(x @ x + 1) * 2).trace(jnp.ones((4, 4)))
        entry = program.lower_and_compile(traced).as_text().partition("\nENTRY")[2]
        pieces.append(entry.count(" = "))
    assert 0 < pieces[0] < pieces[1]


def test_all_bad_options_are_reported_at_once_with_their_places():
    bad = (
        "compiler.cpu={'xla_cpu_multi_thread_eigne': True, 'xla_gpu_autotune_level': 'x', "
        "'xla_backend_optimization_level': 0, 'quark': 1}"
    )
    with pytest.raises(ValidationError) as caught:
        programs.make(graph_of(bad), jax.devices()[:1])
    message = str(caught.value).replace(f" [set by argument {len(SMALL) + 1}: {bad}]", "!")
    assert message.splitlines() == [
        "compiler.cpu.xla_cpu_multi_thread_eigne: XLA has no option 'xla_cpu_multi_thread_eigne' "
        "for a CPU!; did you mean xla_cpu_multi_thread_eigen?",
        "compiler.cpu.xla_gpu_autotune_level: 'x' is not a valid int32 value!",
        "compiler.cpu.quark: XLA has no option 'quark' for a CPU!",
    ]


class _Compiled(Exception):
    """What the compiler was given; it is not waited for."""


@pytest.fixture
def given(monkeypatch):
    """Return a function that tells with which options a call compiles."""

    real = jax.stages.Lowered.compile

    def compiled(lowered, compiler_options=None, **named):
        if compiler_options is None:  # no program: what a device can do is measured
            return real(lowered)
        raise _Compiled(compiler_options)

    def options_of(call, *arguments):
        monkeypatch.setattr(jax.stages.Lowered, "compile", compiled)
        with pytest.raises(_Compiled) as caught:
            call(*arguments)
        monkeypatch.setattr(jax.stages.Lowered, "compile", real)
        return caught.value.args[0]

    return options_of


def test_they_reach_a_training(given):
    program = programs.make(graph_of(SET), jax.devices()[:1])
    assert given(program.compile_step) == OPTIONS
    assert given(program.compile_evaluation, program.batch, "parameters") == OPTIONS


@pytest.mark.full
def test_what_runs_once_is_compiled_quickly_unless_the_user_says_otherwise(monkeypatch):
    seen, real = [], jax.jit

    def jit(function, **named):
        seen.append(named.get("compiler_options"))
        return real(function, **named)

    def options_of(*overrides):
        program = programs.make(graph_of(*overrides), jax.devices()[:1])
        monkeypatch.setattr(jax, "jit", jit)
        leaves = program.init(program.values())
        monkeypatch.setattr(jax, "jit", real)
        return seen.pop(), [np.asarray(leaf) for leaf in leaves]

    quick, level = quick_cpu_options(), "xla_backend_optimization_level"
    monkeypatch.delenv("XLA_FLAGS", raising=False)
    options, leaves = options_of()
    assert options == quick
    assert options_of(f"compiler.cpu={{{level!r}: 3}}")[0] == {**quick, level: 3}
    monkeypatch.setenv("XLA_FLAGS", f"--{level}=0")  # read by XLA at its start: no effect here
    options, again = options_of()
    assert options == {name: value for name, value in quick.items() if name != level}
    for leaf, other in zip(leaves, again, strict=True):
        np.testing.assert_allclose(leaf, other, rtol=1e-6)


def test_precision_has_the_last_word():
    words = ("compiler.cpu={'xla_gpu_deterministic_ops': False}", "precision.repeatability=exact")
    program = programs.make(graph_of(*words), jax.devices()[:1])
    assert program.compiler_options == {"xla_gpu_deterministic_ops": True}


@pytest.mark.slow
def test_they_reach_a_plan_and_name_what_it_keeps(given, monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    slice, names = targets.read("cpu:8"), []
    programs.make(graph_of(SET), jax.devices()[:1])  # what XLA refuses is asked once in a process
    monkeypatch.setattr(planning.process, "read", names.append)
    planned = functools.partial(planning.plan_here, slice=slice, level="compile")
    words = ("training.global_batch_size=8",)
    assert given(planned, graph_of(*words, SET)) == OPTIONS
    assert given(planned, graph_of(*words)) == {}
    assert names[0] != names[1]


def test_they_reach_the_lanes_of_a_sweep(given):
    program = planner.make(graph_of(SET), jax.devices()[:1]).program
    assert given(packed_trials.compile_lanes, program, "vmap", 2, jax.devices()[:1]) == OPTIONS


def test_the_compilation_cache_distinguishes_them(tmp_path):
    """JAX names an entry by the options, too."""
    from jax._src import compilation_cache

    names = ("jax_compilation_cache_dir", "jax_persistent_cache_min_compile_time_secs")
    before = {name: getattr(jax.config, name) for name in names}
    try:
        jax.config.update(names[0], str(tmp_path))
        jax.config.update(names[1], 0.0)
        compilation_cache.reset_cache()
        lowered = jax.jit(lambda x: jnp.tanh(x) + 7.25).lower(np.ones(3, np.float32))
        for options in ({}, {"xla_backend_optimization_level": 0}, {}):
            lowered.compile(options)
        assert len(list(tmp_path.glob("*-cache"))) == 2
    finally:
        for name, value in before.items():
            jax.config.update(name, value)
        compilation_cache.reset_cache()


def test_they_are_a_part_of_the_program_and_of_a_space():
    one, other = graph_of(), graph_of("compiler.gpu.xla_gpu_autotune_level:=2")
    prints = [graphs.fingerprint(graph, "program") for graph in (one, other)]
    assert prints[0] != prints[1]
    options = graphs.build(graphs.get(other, "compiler")).of("gpu")
    assert options["xla_gpu_autotune_level"] == 2
    assert options["xla_gpu_enable_latency_hiding_scheduler"] is True


ABSENT = """
import sys
from luthier.parallel import XlaOptions, quick_cpu_options
from luthier.planner import targets

found = targets.devices(targets.read(sys.argv[1]))
platform = found[0].platform
assert not XlaOptions().refused(found)
(refused,) = XlaOptions(**{platform: {"quark": 1}}).refused(found)
assert refused.path == f"{platform}.quark"
assert refused.what == f"XLA has no option 'quark' for a {platform.upper()}"
"""


@pytest.mark.parametrize("slice", ["h100:8", "v5e-4"])
def test_compilers_of_absent_devices_take_the_defaults_and_refuse_others(slice):
    asked = targets.read(slice)
    if targets.missing_compiler(asked):
        pytest.skip(targets.missing_compiler(asked))
    command = [sys.executable, "-c", ABSENT, slice]
    subprocess.run(command, env=targets.environment(asked, os.environ), check=True)


def test_options_that_name_files_or_tools_are_refused_and_write_nothing(tmp_path):
    names = (
        *(
            "xla_dump_to",
            "xla_gpu_cuda_data_dir",
            "xla_gpu_kernel_cache_file",
            "xla_gpu_extra_opts",
        ),
        *("xla_gpu_per_fusion_autotune_cache_dir", "xla_gpu_pgle_profile_file_or_directory_path"),
        *("xla_gpu_load_autotune_results_from", "xla_backend_extra_options", "xla_hlo_profile"),
    )
    options = XlaOptions(cpu=dict.fromkeys(names, str(tmp_path / "owned")))
    refused = [(it.path, it.what) for it in options.refused(jax.devices())]
    reason = "{!r} names files or tools; set it in XLA_FLAGS"
    assert refused == [(f"cpu.{name}", reason.format(name)) for name in names]
    with pytest.raises(ValidationError, match="names files or tools"):
        options.of("cpu")
    graph = graph_of(f"compiler.cpu={{'xla_dump_to': '{tmp_path}/owned'}}")
    with pytest.raises(ValidationError, match="names files or tools") as caught:
        programs.make(graph, jax.devices()[:1])
    assert len(str(caught.value).splitlines()) == 1
    assert not list(tmp_path.iterdir())
