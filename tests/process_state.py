"""The state of a process that imports and calls of luthier must leave as it was."""

from __future__ import annotations

# Libraries are imported before the state is read: their own imports may change it.
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
