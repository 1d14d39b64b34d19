from __future__ import annotations

import copy
import inspect
import subprocess
import sys
import textwrap

import fiddle as fdl
import pytest
from graph_toys import modules, parts

from luthier.graph import copy_graph, matching, signatures, validate


def run(code: str) -> str:
    """Run Python in a new process."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_the_private_names_are_still_there():
    """Fails when flax or Fiddle move what the shim leans on: see luthier.graph.signatures."""
    from fiddle._src import signatures as fiddle_signatures
    from flax import nnx
    from flax.nnx import pytreelib

    assert isinstance(nnx.Module, pytreelib.PytreeMeta)
    assert hasattr(fiddle_signatures._signature_cache, "clear")
    assert isinstance(pytreelib.PytreeMeta.__dict__["__signature__"], property)
    # Without the shim there would still be something to cure.
    assert inspect.signature(pytreelib.PytreeMeta.__call__).parameters.keys() >= {"args", "kwargs"}


def test_fiddle_sees_the_arguments_of_modules():
    node = fdl.Partial(modules.Dense, 3, out=4)
    assert node.dim == 3
    assert node.use_bias is True
    with pytest.raises(AttributeError, match="No parameter named 'uot' exists"):
        node.uot = 3
    assert list(inspect.signature(modules.Dense).parameters) == ["dim", "out", "use_bias", "rngs"]
    assert list(inspect.signature(modules.Bare).parameters) == []


def test_the_shim_is_there_before_the_first_module_is_described():
    """Also where flax is imported long after luthier.graph, and not through it."""
    assert (
        run(
            """
        import sys
        from luthier.graph import signatures
        signatures.install()
        assert "flax" not in sys.modules
        from flax import nnx
        import fiddle as fdl
        print(sorted(fdl.Partial(nnx.Linear, 1, out_features=2).__arguments__))
        print(any("PatchAfterImport" in repr(finder) for finder in sys.meta_path))
        """
        )
        == "['in_features', 'out_features']\nFalse"
    )


@pytest.mark.full
def test_the_shim_works_where_flax_was_first():
    assert run(
        """
        from flax import nnx
        import fiddle as fdl
        before = fdl.Partial(nnx.Linear, 1, 2)
        import luthier.graph
        luthier.install()
        print(sorted(fdl.Partial(nnx.Linear, 1, out_features=2).__arguments__))
        # A node from before has numbers for names; the copy that `apply` makes puts it right.
        changed = luthier.graph.apply(fdl.Config(dict, a=before), ["a.out_features=5"])
        print(before.__arguments__, changed.a.__arguments__)
        """
    ) == ("['in_features', 'out_features']\n{0: 1, 1: 2} {'in_features': 1, 'out_features': 5}")


def test_importing_the_graph_is_cheap():
    heavy = "{'jax', 'flax', 'optax', 'numpy', 'pydantic', 'orbax'}"
    assert run(f"import sys, luthier.graph; print({heavy} & set(sys.modules))") == "set()"


def test_install_twice_is_once():
    from flax.nnx import pytreelib

    before = pytreelib.PytreeMeta.__dict__["__signature__"]
    signatures.install()
    assert pytreelib.PytreeMeta.__dict__["__signature__"] is before
    assert signatures._PatchAfterImport not in sys.meta_path


def test_module_classes_and_what_they_inherit():
    assert signatures.is_module_class(modules.Dense)
    assert not signatures.is_module_class(parts.Mlp)
    assert not signatures.is_module_class(3)
    assert signatures.inherited(modules.Dense) == ("dim", "rngs")
    assert signatures.inherited(modules.Net) == ("rngs",)
    assert signatures.inherited(parts.Mlp) == ()


def test_arguments():
    found = signatures.arguments(parts.Cosine)
    assert found.names == ("peak", "warmup_steps", "total_steps")
    assert found.required == ("peak",)
    assert found.defaults == {"warmup_steps": 100, "total_steps": 1000}
    assert signatures.arguments(parts.Rules).defaults["parameters"]["embed"] == ("fsdp",)
    found = signatures.arguments(parts.by_position)
    assert (found.positional_only, found.required) == (("a", "b"), (0,))
    assert signatures.arguments(parts.chain).has_args
    assert signatures.arguments(parts.keywords).has_kwargs


def test_type_hints_resolve_one_by_one():
    assert signatures.type_hints(parts.half_typed) == {"size": int, "return": int}
    assert signatures.type_hints(parts.Cosine)["peak"] is float
    assert signatures.type_hints(parts.Experiment)["seed"] == int | None
    assert "RANGES" not in signatures.type_hints(parts.Cosine)
    assert signatures.type_hints(parts.GatedMlp)["gate"] is str
    assert signatures.type_hints(modules.Dense)["out"] is int
    assert signatures.type_hints(parts.untyped) == {}
    assert signatures.type_hints(fdl.Tag) == {}


def test_what_cannot_be_hashed_is_still_read():
    class Unhashable:
        __hash__ = None

        def __call__(self, a: int, b: int = 2) -> int:
            return a

    assert signatures.arguments(Unhashable()).required == ("a",)
    assert signatures.type_hints(Unhashable())["a"] is int


def test_tags_and_history_from_before_the_shim_move_to_the_name():
    signatures.uninstall()
    try:
        before = fdl.Partial(modules.Dense, 3, 4)
        fdl.add_tag(before, 0, parts.Rate)
        before[1] = 5
    finally:
        signatures.install()
    assert set(before.__arguments__) == {0, 1}
    sets = {part: list(before.__argument_history__[part]) for part in (0, 1)}
    renewed = copy.deepcopy(before)
    validate(renewed, packages=["graph_toys"])  # in place, like `resolve`
    for node in (copy_graph(before), renewed):
        assert dict(node.__argument_tags__) == {"dim": {parts.Rate}}
        assert [list(node.__argument_history__[name]) for name in ("dim", "out")] == list(
            sets.values()
        )
        assert not {0, 1} & set(node.__argument_history__)
        assert [place.path for place in matching(fdl.Config(dict, a=node), "tag:Rate")] == ["a.dim"]
    assert dict(before.__argument_tags__) == {0: {parts.Rate}}
