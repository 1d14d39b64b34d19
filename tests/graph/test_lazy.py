from __future__ import annotations

import builtins
import copy
import inspect
import sys
import textwrap
import threading

import fiddle as fdl
import jax as real_jax
import pytest
from fiddle.experimental import auto_config
from graph_toys import modules as real_modules
from graph_toys import parts as real_parts

import luthier
from luthier import graph as graphs
from luthier import layers as real_layers
from luthier import lazy
from luthier import models as real_models
from luthier.errors import BadInput, UserCodeError, ValidationError

found = {}


def _import_elsewhere():
    from graph_toys import parts

    found["in another thread"] = parts


with lazy.imports():
    import jax
    import jax.numpy as jnp
    from graph_toys import modules, parts
    from graph_toys.parts import Cosine, Kind

    from luthier import layers, models
    from luthier.graph import set_value, value
    from luthier.recipes import decoders

    found["hook"] = [builtins.__import__]
    thread = threading.Thread(target=_import_elsewhere)
    thread.start()
    thread.join()
    found["in the block"] = [parts]

IMPORT = builtins.__import__


def decoder():
    norm = layers.RMSNorm(epsilon=1e-5)
    return models.Decoder(
        vocab_size=value(256, name="vocab_size"),
        dim=64,
        num_layers=2,
        block=[
            layers.PreNormBlock(
                attention=layers.Attention(4, rotary=layers.Rotary(), projection=layers.Linear),
                mlp=layers.GatedMlp(hidden_dim=128, activation=jax.nn.gelu),
                norm=norm,
                dropout=layers.Dropout(0.1),
                dtype=jnp.bfloat16,
            )
        ],
        norm=norm,
    )


def written_decoder():
    norm = fdl.Partial(real_layers.RMSNorm, epsilon=1e-5)
    return fdl.Partial(
        real_models.Decoder,
        vocab_size=graphs.value(256, name="vocab_size"),
        dim=64,
        num_layers=2,
        block=[
            fdl.Partial(
                real_layers.PreNormBlock,
                attention=fdl.Partial(
                    real_layers.Attention,
                    num_heads=4,
                    rotary=fdl.Config(real_layers.Rotary),
                    projection=real_layers.Linear,
                ),
                mlp=fdl.Partial(real_layers.GatedMlp, hidden_dim=128, activation=real_jax.nn.gelu),
                norm=norm,
                dropout=fdl.Partial(real_layers.Dropout, rate=0.1),
                dtype=real_jax.numpy.bfloat16,
            )
        ],
        norm=norm,
    )


def toy():
    return parts.Experiment(
        name="toy",
        model=parts.Model(dim=16, layers=[parts.Mlp(hidden=64), parts.GatedMlp()]),
        optimizer=parts.adam(Cosine(peak=1e-3), b2=0.99),
        data=parts.Source(fields=("a", "b")),
        evaluations={"held_out": parts.Evaluation(data=parts.Source())},
        kind=Kind.EXACT,
        callback=parts.gelu,
    )


def written_toy():
    return fdl.Config(
        real_parts.Experiment,
        name="toy",
        model=fdl.Config(
            real_parts.Model,
            dim=16,
            layers=[fdl.Config(real_parts.Mlp, hidden=64), fdl.Config(real_parts.GatedMlp)],
        ),
        optimizer=fdl.Config(real_parts.adam, fdl.Config(real_parts.Cosine, peak=1e-3), b2=0.99),
        data=fdl.Config(real_parts.Source, fields=("a", "b")),
        evaluations={
            "held_out": fdl.Config(real_parts.Evaluation, data=fdl.Config(real_parts.Source))
        },
        kind=real_parts.Kind.EXACT,
        callback=real_parts.gelu,
    )


@pytest.mark.parametrize(
    ("made", "written"), [(decoder, written_decoder), (toy, written_toy)], ids=["model", "toy"]
)
def test_calls_make_the_graph_that_is_written_out(made, written):
    graph, expected = made(), written()
    assert graphs.equal(graph, expected)
    assert graphs.to_json(graph) == graphs.to_json(expected)
    for kind in ("record", "program"):
        assert graphs.fingerprint(graph, kind) == graphs.fingerprint(expected, kind)


def test_nothing_is_patched_within_the_block_or_after_it():
    assert found["hook"] == [IMPORT]
    assert found["in another thread"] is real_parts
    assert found["in the block"] == [real_parts], "the names are bound to proxies at the end"
    assert repr(parts) == f"<lazily imported {real_parts!r}>"


def test_names_without_a_call_are_the_objects():
    assert Kind.EXACT is real_parts.Kind.EXACT
    assert jnp.bfloat16 is real_jax.numpy.bfloat16
    node = modules.Net(dim=3, block=modules.Dense, activation=jax.nn.relu, dtype=jnp.float16)
    assert node.block is real_modules.Dense
    assert node.activation is real_jax.nn.relu
    # Notebooks and editors ask for these.
    assert inspect.signature(modules.Dense) == inspect.signature(real_modules.Dense)
    assert layers.RMSNorm.__doc__ == inspect.getdoc(real_layers.RMSNorm)
    assert "RMSNorm" in dir(layers)


def test_a_callable_that_the_object_is_not_makes_a_template():
    """Without the marker of `luthier.layers.Template`; a schedule can be called itself."""
    assert type(modules.Net(3, modules.Dense(out=4)).block) is fdl.Partial
    optimizer = parts.Optimizer(learning_rate=parts.Constant(0.1))
    assert type(optimizer.learning_rate) is fdl.Config
    assert type(parts.Experiment(callback=parts.Mlp()).callback) is fdl.Partial


def test_a_node_that_becomes_a_template_stays_the_same_node():
    dropout = layers.Dropout(rate=0.1)
    first, second = layers.PreNormBlock(dropout=dropout), layers.PreNormBlock(dropout=dropout)
    dropout.rate = 0.2
    assert first.dropout is second.dropout is dropout
    assert type(dropout) is fdl.Partial
    assert first.dropout.rate == 0.2


def test_a_node_of_fiddle_is_left_as_it_was_written():
    written = fdl.Config(real_layers.Dropout, rate=0.1)
    block = layers.PreNormBlock(dropout=written)
    assert block.dropout is written
    assert type(written) is fdl.Config
    with pytest.raises(
        ValidationError, match="dropout: is a Dropout, and its parent takes a template"
    ):
        graphs.validate(block)


@pytest.mark.parametrize("finish", ["validate", "apply"])
def test_assignments_are_resolved_before_the_graph_is_used(finish):
    graph, expected = decoder(), written_decoder()
    graph.block[0].mlp.activation = jax.nn.silu
    graph.block[0].dropout = layers.Dropout(rate=0.3)
    graph.norm = fdl.Partial(layers.LayerNorm, epsilon=1e-4)
    expected.block[0].mlp.activation = real_jax.nn.silu
    expected.block[0].dropout = fdl.Partial(real_layers.Dropout, rate=0.3)
    expected.norm = fdl.Partial(real_layers.LayerNorm, epsilon=1e-4)
    if finish == "validate":
        graphs.validate(graph)
    else:
        graph = graphs.apply(graph, [("dim", 64)])
    assert graphs.equal(graph, expected)


def test_functions_that_work_on_graphs_are_called():
    sizes = {"vocab_size": 256, "dim": 64, "num_layers": 2, "num_heads": 4, "hidden_dim": 128}
    graph = decoders.llama(**sizes)
    assert isinstance(graph, fdl.Partial)
    assert graph.__fn_or_cls__ is real_models.Decoder
    assert set_value(graph, "dim", 32) is None
    assert graph.dim == 32


def test_functions_that_were_written_with_lazy_imports_are_called(project):
    text = HEAD.replace("experiment()", "norm() -> layers.RMSNorm")
    project_text = (
        "    return layers.RMSNorm(epsilon=1e-3)\n\n\ndef experiment():\n    return norm()\n"
    )
    project("lazy_parts", text + project_text)
    other = HEAD.replace("import layers", "import layers\n    import lazy_parts")
    graph = project("lazy_user", f"{other}    return lazy_parts.norm()\n")
    assert graphs.equal(graph, fdl.Partial(real_layers.RMSNorm, epsilon=1e-3))


def test_experiments_are_called():
    namespace = {}
    cell = "from luthier import lazy\nwith lazy.imports():\n    from configs.lm import quickstart\n"
    exec(compile(cell, "<cell>", "exec"), namespace)
    graph = namespace["quickstart"].experiment()
    assert graphs.equal(graph, graphs.resolve("configs.lm.quickstart"))


def test_graphs_are_copied_with_what_assignments_left_in_them():
    graph = parts.Experiment(callback=None)
    graph.callback = parts.gelu
    copied = copy.deepcopy(graph)
    assert graphs.apply(copied, [("steps", 3)]).callback is real_parts.gelu


def test_the_origin_of_a_value_is_the_line_of_its_call():
    graph = parts.Experiment(name="toy", optimizer=parts.Optimizer(b2=0.5))
    line = inspect.currentframe().f_lineno - 1
    assert graphs.origin_of(graph, "optimizer.b2").endswith(f"test_lazy.py:{line}")
    model = decoders.llama(vocab_size=8, dim=64, num_layers=2, num_heads=4, hidden_dim=128)
    (*_, cause) = graphs.explain(model, "block.mlp.hidden_dim").causes
    assert "recipes/decoders/llama.py:" in cause.origin
    assert cause.callers[0].endswith(f"test_lazy.py:{line + 3}")


@pytest.fixture
def project(tmp_path, monkeypatch):
    """Return a function that writes an experiment's module, and resolves it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)

    def resolve(name, text):
        monkeypatch.delitem(sys.modules, name, raising=False)
        (tmp_path / f"{name}.py").write_text(textwrap.dedent(text))
        return graphs.resolve(name)

    return resolve


HEAD = """\
from luthier import lazy

with lazy.imports():
    from luthier import layers

def experiment():
"""


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (
            "    return layers.RMSNorm(epsilo=1e-5)",
            "TypeError: RMSNorm has no argument 'epsilo'; did you mean epsilon?",
        ),
        (
            "    return layers.RMSNrm(epsilon=1e-5)",
            "AttributeError: luthier.layers has no 'RMSNrm'; did you mean RMSNorm?",
        ),
        (
            "    return layers.Rotary(1.0, base=2.0)",
            "TypeError: Rotary is given 'base' twice",
        ),
        (
            "    return layers.Dropout(0.1, 2)",
            "TypeError: Dropout takes rate, and is given 2 arguments without a name",
        ),
        (
            "    return 2 * layers.Rotary()",
            "TypeError: unsupported operand type(s) for *: 'int' and 'Config'; compute on shared "
            "values with luthier.graph, as multiply(dim, 4)",
        ),
    ],
)
def test_a_wrong_call_is_one_line_that_names_the_line(project, body, message):
    with pytest.raises(UserCodeError) as raised:
        project("lazy_wrong", HEAD + body)
    assert str(raised.value) == f"lazy_wrong:experiment failed: {message}"
    assert raised.value.details[-1].strip() == f"lazy_wrong.py:7, in experiment: {body.strip()}"


OWN_CLASS = """\
import fiddle as fdl
from flax import nnx
from luthier import lazy
with lazy.imports():
    from luthier import layers
class TanhMlp(nnx.Module):
    INHERITED = ("dim", "rngs")
    def __init__(self, hidden_dim, *, dim, rngs):
        self.up = nnx.Linear(dim, hidden_dim, rngs=rngs)
def experiment():
    return layers.PreNormBlock(layers.Attention(2), {mlp}, layers.RMSNorm())
"""


def test_a_module_class_of_the_file_itself_is_a_template_by_a_partial(project):
    with pytest.raises(UserCodeError) as raised:
        project("own_class_called", OWN_CLASS.format(mlp="TanhMlp(hidden_dim=8)"))
    (problem,) = raised.value.problems
    assert "missing 2 required keyword-only arguments: 'dim' and 'rngs'" in problem.what
    assert problem.remedy.startswith("write fdl.Partial(TanhMlp, ...)")
    remedied = OWN_CLASS.format(mlp="fdl.Partial(TanhMlp, hidden_dim=8)")
    assert project("own_class_remedied", remedied).mlp.hidden_dim == 8


def test_in_a_function_it_is_refused_with_the_remedy(project):
    text = """\
    def experiment():
        from luthier import lazy
        with lazy.imports():
            from luthier import layers
        return layers.RMSNorm()
    """
    with pytest.raises(BadInput) as raised:
        project("lazy_inside", text)
    assert str(raised.value) == (
        "lazy_inside.py:3: luthier.lazy.imports() is inside of the function experiment; "
        "move it to the top level of the module"
    )


def test_cells_of_a_notebook_can_be_run_again():
    namespace = {}
    cell = "import luthier\nwith luthier.lazy.imports():\n    from luthier import layers\n"
    exec("from luthier import layers", namespace)
    for _ in range(2):
        exec(compile(cell, "<cell>", "exec"), namespace)
        node = namespace["layers"].RMSNorm(epsilon=1e-5)
        assert graphs.equal(node, fdl.Partial(real_layers.RMSNorm, epsilon=1e-5))
    assert namespace["luthier"] is luthier, "bound outside of the block"


def test_every_form_of_import_is_lazy():
    text = """\
    from luthier import lazy
    with lazy.imports():
        import graph_toys.parts
        import graph_toys.parts as aliased
        from graph_toys.parts import *
        from graph_toys.parts import Layer as Renamed
        try:
            from graph_toys.parts import Missing
        except ImportError:
            from graph_toys.parts import Source as Missing
    """
    namespace = {}
    exec(compile(textwrap.dedent(text), "<cell>", "exec"), namespace)
    nodes = [
        namespace["graph_toys"].parts.Mlp(hidden=3),
        namespace["aliased"].Mlp(hidden=3),
        namespace["Mlp"](hidden=3),
    ]
    assert all(graphs.equal(node, fdl.Config(real_parts.Mlp, hidden=3)) for node in nodes)
    assert graphs.equal(namespace["Renamed"](dim=3), fdl.Config(real_parts.Layer, dim=3))
    assert graphs.equal(namespace["Missing"](), fdl.Config(real_parts.Source))


def test_an_import_that_fails_binds_nothing():
    namespace = {}
    cell = "from luthier import lazy\nwith lazy.imports():\n    import no_such_module_at_all\n"
    with pytest.raises(ModuleNotFoundError, match="no_such_module_at_all"):
        exec(compile(cell, "<cell>", "exec"), namespace)
    assert "no_such_module_at_all" not in namespace


@auto_config.auto_config
def configured():
    return real_parts.Model(dim=4, layers=[real_parts.Mlp(hidden=2)])


def test_auto_config_is_as_before():
    expected = fdl.Config(real_parts.Model, dim=4, layers=[fdl.Config(real_parts.Mlp, hidden=2)])
    assert graphs.equal(configured.as_buildable(), expected)
    assert isinstance(configured(), real_parts.Model)
