import jax
import numpy as np
import pytest

from luthier import graph as graphs
from luthier import parallel, planner, recipes
from luthier.errors import BadInput
from luthier.recipes import quick_compile
from tests.program.test_precision import SMALL


def test_its_options_join_those_that_are_there():
    graph = graphs.resolve("configs.lm.quickstart")
    fast = graphs.apply(graph, ["compiler.cpu:={'xla_cpu_enable_fast_math': True}"])
    options = graphs.get(quick_compile(fast), "compiler.cpu")
    assert options == {"xla_cpu_enable_fast_math": True, **parallel.quick_cpu_options()}
    assert graphs.get(fast, "compiler.cpu") == {"xla_cpu_enable_fast_math": True}, "untouched"
    changes = graphs.diff(graph, quick_compile(graph))
    assert {change.path.partition(".")[0] for change in changes} == {"compiler"}
    assert graphs.get(quick_compile(graph), "compiler.gpu") == graphs.get(graph, "compiler.gpu")


def test_later_overrides_win():
    words = ["fiddler:luthier.recipes.quick_compile"]
    words += ["compiler.cpu.xla_backend_optimization_level=2"]
    graph = graphs.apply(graphs.resolve("configs.lm.quickstart"), words)
    assert graphs.get(graph, "compiler.cpu.xla_backend_optimization_level") == 2


def test_this_compiler_takes_its_options():
    options = parallel.XlaOptions(cpu=parallel.quick_cpu_options())
    assert options.of("cpu")
    assert not options.refused(jax.devices("cpu")[:1])


@pytest.mark.full
def test_a_step_computes_the_same():
    graph = graphs.apply(graphs.resolve("configs.lm.quickstart"), [*SMALL])
    fast = {n: True for n, o in parallel.quick_cpu_options().items() if o is False}
    own = {"xla_backend_optimization_level": 3} | fast  # whatever XLA_FLAGS say
    scalars, kernels = [], []
    for experiment in (graphs.apply(graph, [f"compiler.cpu={own}"]), quick_compile(graph)):
        program = planner.make(experiment, jax.devices()[:1]).program
        batch = {n: np.ones(info.shape, info.dtype) for n, info in program.batch.items()}
        step = program.compile_step()
        values = program.values()
        _, computed = step(values, program.init(values), batch)
        scalars.append(dict(zip(program.scalar_names, np.asarray(computed), strict=True)))
        kernels.append(step.as_text().count(" fusion("))
    own, quick = scalars
    for name in ("loss", "gradient_norm", "parameter_norm"):
        np.testing.assert_allclose(quick[name], own[name], rtol=1e-5)
    if "xla_cpu_use_fusion_emitters" in parallel.quick_cpu_options():
        assert kernels[1] < kernels[0]


def test_a_model_alone_is_refused():
    with pytest.raises(BadInput, match="a model alone is not compiled"):
        quick_compile(
            recipes.decoders.gpt2(vocab_size=8, max_length=8, dim=8, num_layers=1, num_heads=1)
        )
