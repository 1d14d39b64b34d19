"""Importing changes nothing in the process; `luthier.install` does, and can be taken back."""

from __future__ import annotations

import subprocess
import sys

import pytest

# The state that imports of ours must leave alone; libraries are imported before it is read.
STATE = '''
import gc, importlib, inspect, logging, signal, sys, threading, warnings
LIBRARIES = """fiddle fiddle.history flax.nnx jax jax.numpy jax.extend.random numpy optax optuna
    orbax.checkpoint grain ml_collections gin wandb rich tensorstore safetensors tokenizers qwix ray
    jax.experimental.pallas jax.experimental.serialize_executable""".split()
for library in LIBRARIES:
    try:
        importlib.import_module(library)
    except ImportError:
        pass
import fiddle, jax, optuna
from fiddle._src import history
from flax import nnx
from jax._src.interpreters import mlir

def state():
    rules = {f"cpu {p}": id(r) for p, r in mlir._platform_specific_lowerings["cpu"].items()}
    rules |= {str(p): id(r) for p, r in mlir._lowerings.items()}
    known = (nnx.Module, nnx.Linear, nnx.Param, nnx.Sequential)
    return {
        "lowerings": rules,
        "finders": list(sys.meta_path),
        "signatures": [str(inspect.signature(kind)) for kind in known],
        "metaclass": [kind for kind in type(nnx.Module).__mro__ if "__signature__" in vars(kind)],
        "locations of fiddle": history._location_provider,
        "verbosity of optuna": optuna.logging.get_verbosity(),
        "gc": (gc.isenabled(), gc.get_threshold(), gc.get_freeze_count()),
        "filters of warnings": list(warnings.filters),
        "handlers of logs": list(logging.getLogger().handlers),
        "signals": {number: signal.getsignal(number) for number in signal.valid_signals()},
        "streams": (sys.stdout, sys.stderr, sys.excepthook, threading.excepthook),
        "configuration of jax": dict(jax.config.values),
    }

def changes(before):
    now = state()
    return [name for name in before if before[name] != now[name]]
'''


def _run(code: str) -> str:
    command = [sys.executable, "-W", "ignore", "-c", STATE + code]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout


@pytest.mark.full
def test_importing_every_module_changes_nothing(modules):
    names = [
        module.import_name
        for module in modules
        # What only runs as a program, under other versions of luthier or without its libraries.
        if module.path.name != "__main__.py" and "template" not in module.place
    ]
    assert len(names) > 300
    code = f"""
before = state()
for name in {names!r}:
    importlib.import_module(name)
    changed = changes(before)
    if changed:
        print(name, changed)
        before = state()
"""
    assert _run(code) == ""


@pytest.mark.full
def test_install_twice_and_undo_once_leave_all_as_it_was():
    code = """
import luthier
before = state()
undo = luthier.install()
print(changes(before))
installed = state()
luthier.install()
print(changes(installed))
undo()
print(changes(before))
"""
    installed = "['lowerings', 'signatures', 'metaclass', 'locations of fiddle']"
    assert _run(code).splitlines() == [installed, "[]", "[]"]


def test_nodes_from_before_get_their_names_when_they_are_checked():
    """A notebook makes nodes by hand before any function of luthier is called."""
    code = """
import fiddle as fdl
from luthier import graph, layers
node = fdl.Config(layers.Linear, 3, features=2, dims=4)
print(sorted(map(str, node.__arguments__)))
try:
    graph.validate(node)
except graph.errors.BadInput as error:
    print(error)
print(sorted(map(str, node.__arguments__)))
"""
    code = code.replace("graph.errors.BadInput", "luthier.errors.BadInput")
    first, *reported, last = _run("import luthier.errors\n" + code).splitlines()
    assert first == "['0', 'dims', 'features']"
    assert any("dims" in line for line in reported)
    assert "'0'" not in last
