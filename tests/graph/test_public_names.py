from __future__ import annotations

import os
import subprocess
import sys

import fiddle as fdl
import flax.nnx as nnx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import optuna
import pytest
from graph_toys import parts, recorded
from orbax.checkpoint import v1 as orbax

from luthier import graph as graphs
from luthier import launch
from luthier import study as studies
from luthier.errors import RecordError
from luthier.graph import compare, display_name, load_object, public_name, public_names, values

NAMES = {
    "optax.adamw": optax.adamw,
    "optax.cosine_decay_schedule": optax.cosine_decay_schedule,
    "jax.nn.gelu": jax.nn.gelu,
    "jax.nn.relu": jax.nn.relu,
    "jax.nn.silu": jax.nn.swish,
    "jax.numpy.tanh": jnp.tanh,
    "jax.numpy.add": jnp.add,
    "jax.numpy.bfloat16": jnp.bfloat16,
    "jax.numpy.float32": jnp.float32,
    "numpy.float32": np.float32,
    "jax.lax.rsqrt": jax.lax.rsqrt,
    "jax.lax.Precision": jax.lax.Precision,
    "jax.nn.initializers.he_normal": jax.nn.initializers.he_normal,
    "jax.random.normal": jax.random.normal,
    "flax.nnx.Linear": nnx.Linear,
    "flax.nnx.Param": nnx.Param,
    "optuna.samplers.TPESampler": optuna.samplers.TPESampler,
    "jax.P": jax.sharding.PartitionSpec,
    "orbax.checkpoint.checkpoint_managers.LatestN": (orbax.training.preservation_policies.LatestN),
    "builtins.int": int,
    "graph_toys.recorded.Holder.Inner": recorded.Holder.Inner,
    "luthier.graph.values.product": values.product,
}


@pytest.mark.parametrize("name", NAMES)
def test_the_shortest_public_name_leads_back(name):
    assert public_name(NAMES[name]) == name
    assert load_object(name, ["graph_toys"]) is NAMES[name]


def test_equal_dtypes_keep_their_own_names():
    assert jnp.float32 == np.float32
    assert hash(jnp.float32) == hash(np.float32)
    for _ in range(2):
        assert public_name(jnp.float32) == "jax.numpy.float32"
        assert public_name(np.float32) == "numpy.float32"


def test_class_methods_have_names():
    assert public_name(recorded.Holder.make) == "graph_toys.recorded.Holder.make"
    assert load_object("graph_toys.recorded.Holder.make", ["graph_toys"]) == recorded.Holder.make


@pytest.mark.full
def test_names_do_not_depend_on_what_was_imported_first():
    program = (
        "import {first}\nimport {second}\nfrom luthier.graph.public_names import public_name as n\n"
        "import jax, optax, flax.nnx as nnx, jax.numpy as jnp\n"
        "print([n(x) for x in (jax.nn.gelu, nnx.relu, optax.adamw, nnx.Linear, jnp.exp)])"
    )
    outputs = {
        subprocess.run(
            [sys.executable, "-c", program.format(first=first, second=second)],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for first, second in (("flax.nnx", "optax"), ("jax.nn.initializers", "jax.scipy.special"))
    }
    assert len(outputs) == 1
    assert "jax.nn.gelu" in outputs.pop()


def _local():
    return None


_local.__qualname__ = "test.<locals>.local"


@pytest.mark.parametrize(
    ("target", "message"),
    [
        (lambda: 0, "lambda"),
        (_local, "local to a function"),
        (jax.nn.initializers.he_normal(), "local to a function"),
        (public_names._refuse, "no public name"),
        (object(), "no public name"),
    ],
)
def test_what_has_no_name_says_why(target, message):
    with pytest.raises(RecordError, match=message):
        public_name(target)
    assert isinstance(display_name(target), str)


def test_what_is_in_main_is_refused(monkeypatch):
    monkeypatch.setattr(parts.Layer, "__module__", "__main__")
    with pytest.raises(RecordError, match="__main__"):
        public_names._find_name(parts.Layer)


REFUSED = [
    "os.system",
    "posix.system",
    "subprocess.Popen",
    "builtins.eval",
    "builtins.exec",
    "builtins.getattr",
    "builtins.__import__",
    "jax._src.xla_bridge.os.system",
    "jax._src.nn.functions.gelu",
    "optax._src.alias.adamw",
    "jax.os.system",
    "jax.nn.gelu.__globals__",
    "jax.nn.gelu.__class__",
    "flax.nnx.Module.__subclasses__",
    "numpy.testing.runstring",
    "numpy.load",
    "numpy.lib.npyio.load",
    "jax.numpy.load",
    "jax.experimental.serialize_executable.deserialize_and_load",
    "jax.pure_callback",
    "grain.DataLoader",
    "orbax.checkpoint.v1.training.Checkpointer",
    "orbax.checkpoint.test_utils.erase_and_create_empty",
    "optuna.storages.JournalStorage",
    "luthier.checkpoint.policy.discard",
    "luthier.records.redaction.write_json",
    "luthier.records.weights_and_biases.node.start_process",
    "luthier.records.RunDirectory",
    "luthier.study.driver.mirror.begin",
    "luthier.study.run",
    "luthier.layers.Attention.__init__",
    "luthier.durations.Steps.count",
    "numpy.ndarray.tofile",
    "luthier.graph.public_names.load_object",
    "luthier.graph.from_json",
    "luthier.graph.public_names.importlib.import_module",
    "luthier.cli.main.console",
    "graph_toys.parts.Layer",
    "graph_toys.parts.pathlib.Path.unlink",
    "jax..nn",
    "jax.nn.gelu; import os",
    "",
    "jax.nn",
    "pickle.loads",
    "sys.modules",
]


@pytest.mark.parametrize("name", REFUSED)
def test_off_the_list_is_refused(name):
    with pytest.raises(RecordError) as caught:
        load_object(name)
    assert len(str(caught.value).splitlines()) == 1


def test_nothing_off_the_list_is_imported(tmp_path, monkeypatch):
    (tmp_path / "evil_module.py").write_text("raise SystemExit('imported')")
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("evil_module.run", "evil_module", "evil_module.a.b"):
        with pytest.raises(RecordError, match=r"\[tool.luthier\]"):
            load_object(name)
    assert "evil_module" not in sys.modules


def test_corners_that_run_code_are_not_even_imported(monkeypatch):
    monkeypatch.delitem(sys.modules, "numpy.f2py", raising=False)
    with pytest.raises(RecordError, match="not on the list"):
        load_object("numpy.f2py.compile")
    assert "numpy.f2py" not in sys.modules


def test_an_object_from_elsewhere_is_refused_where_it_is_exposed(monkeypatch):
    for name, target in {"run": os.system, "shell": subprocess.Popen, "module": os}.items():
        monkeypatch.setattr(parts, name, target, raising=False)
        with pytest.raises(RecordError, match="may not be imported"):
            load_object(f"graph_toys.parts.{name}", ["graph_toys"])
    with pytest.raises(RecordError, match="defined in 'os'"):
        load_object("graph_toys.parts.module.system", ["graph_toys"])


def test_packages_of_the_user_are_on_the_list():
    assert load_object("graph_toys.parts.Layer", ["graph_toys"]) is parts.Layer
    with pytest.raises(RecordError, match="on the list"):
        load_object("graph_toys.parts.Layer", ["graph"])


def test_what_does_not_exist_has_nearest_names():
    with pytest.raises(RecordError, match=r"did you mean optax\.adamw"):
        load_object("optax.adamwx")
    with pytest.raises(RecordError, match="does not exist"):
        load_object("not_installed_anywhere.x", ["not_installed_anywhere"])


def test_a_package_that_fails_to_import_says_so():
    with pytest.raises(RecordError, match=r"importing 'graph_toys.broken_import' failed"):
        load_object("graph_toys.broken_import.x", ["graph_toys"])


def test_renamed_objects_are_found(monkeypatch):
    monkeypatch.setitem(public_names.RENAMED, "luthier.old.Thing", "optax.adamw")
    monkeypatch.setitem(public_names.RENAMED, "graph_toys.old", "graph_toys.parts")
    assert load_object("luthier.old.Thing") is optax.adamw
    assert load_object("graph_toys.old.Layer", ["graph_toys"]) is parts.Layer


def test_a_record_with_old_names_and_arguments_is_the_graph_of_today():
    graph = fdl.Config(launch.Slurm, nodes=2, groups_per_job=2)
    text = graphs.to_json(graph)
    old = text.replace("groups_per_job", "gangs_per_job")
    assert old != text
    assert graphs.equal(graphs.from_json(old), graph)
    study = graphs.to_json(fdl.Config(studies.Budget, trials=3))
    older = study.replace("luthier.study.", "luthier.sweep.")
    assert older != study
    assert graphs.fingerprint(graphs.from_json(older)) == graphs.fingerprint(
        graphs.from_json(study)
    )
    option = studies.Option(overrides=("seed=1",), name="one")
    choice = graphs.to_json(fdl.Config(studies.Space, {"seed": studies.Choice((option, 2))}))
    with_words = choice.replace('"overrides"', '"words"')
    assert with_words != choice
    assert graphs.fingerprint(graphs.from_json(with_words)) == graphs.fingerprint(
        graphs.from_json(choice)
    )
    for a, b in ((old, text), (older, study), (with_words, choice)):
        compared = compare.compare(compare.read(a), compare.read(b))
        assert compared.changes == []
