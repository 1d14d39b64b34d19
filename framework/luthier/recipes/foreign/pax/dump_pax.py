"""Write an experiment of Pax as JSON, and its weights as safetensors, for `luthier import pax`.

Run it where Pax still runs (Python 3.8 to 3.10); it needs nothing but Pax:

    python dump_pax.py my.experiments.MyLm --output my_lm.json
    python dump_pax.py my.experiments.MyLm --output my_lm.json \\
        --checkpoint JOB_LOG_DIR --weights my_lm.safetensors

The weights need not be exported: `luthier` reads the checkpoints of Pax themselves. `luthier
import pax --print-dumper` printed this file.
"""

# It runs where Pax does, on Python 3.8: no newer syntax, and no import of luthier.
from __future__ import annotations

import argparse
import dataclasses
import enum
import importlib
import inspect
import json
import os
import re
import struct
import sys

FORMAT = "luthier pax dump"
VERSION = 1

_SAFETENSORS = {
    "float64": "F64",
    "float32": "F32",
    "float16": "F16",
    "bfloat16": "BF16",
    "int64": "I64",
    "int32": "I32",
    "int16": "I16",
    "int8": "I8",
    "uint8": "U8",
    "bool": "BOOL",
}


class Dumper:
    """Converts values to JSON; records bases and defaults of the classes that occur."""

    def __init__(self):
        self.classes = {}

    def dump(self, value):
        """Return any value of an experiment as JSON."""
        # The order matters: a bool is an int, and an enum may be one, too. Values that JSON does
        # not have become objects with one telling key (`enum`, `float`, `dtype`, `class`, ...),
        # which `nodes.py` reads. Infinite numbers and NaN are strings, since strict readers refuse
        # them. Nodes of Fiddle come first among objects, dtypes before classes (NumPy's are
        # classes); arrays of one element are numbers, and larger ones only name their class.
        if value is None or isinstance(value, (bool, str)):
            return value
        if isinstance(value, enum.Enum):
            return {"enum": _path(type(value)), "value": value.value}
        if isinstance(value, int):
            return int(value)
        if isinstance(value, float):
            return value if abs(value) < float("inf") else {"float": repr(value)}
        if hasattr(value, "__fn_or_cls__") and hasattr(value, "__arguments__"):
            return self._node(value.__fn_or_cls__, dict(value.__arguments__), type(value))
        if _dtype(value) is not None:
            return {"dtype": _dtype(value)}
        if isinstance(value, dict):
            entries = {str(key): self.dump(inside) for key, inside in value.items()}
            return {"dict": entries}
        if isinstance(value, (list, tuple)):
            return [self.dump(inside) for inside in value]
        if inspect.isclass(value) or inspect.isroutine(value):
            return {"name": _path(value)}
        if dataclasses.is_dataclass(value):
            return self._node(type(value), _fields(value), None)
        if hasattr(value, "item") and getattr(value, "size", 0) == 1:
            return self.dump(value.item())
        return {"object": _path(type(value)), "set": self._attributes(value)}

    def _node(self, target, arguments, kind):
        name = _path(target)
        if name not in self.classes:
            entry = {"bases": [_path(base) for base in _bases(target)], "defaults": {}}
            self.classes[name] = entry  # a class whose defaults hold itself ends here
            entry["defaults"] = {k: self.dump(v) for k, v in _defaults(target, kind).items()}
        known = self.classes[name]["defaults"]
        given = {}
        for key, value in arguments.items():
            dumped = self.dump(value)
            if key not in known or dumped != known[key]:
                given[str(key)] = dumped
        return {"class": name, "set": given}

    def _attributes(self, value):
        found = getattr(value, "__dict__", {})
        if hasattr(value, "IterParams"):  # of Lingvo
            found = dict(value.IterParams())
        attributes = {k: _path(v) if inspect.isclass(v) else v for k, v in sorted(found.items())}
        plain = (bool, int, float, str)
        return {k: v for k, v in attributes.items() if v is None or isinstance(v, plain)}


def _path(value):
    module = getattr(value, "__module__", "")
    name = getattr(value, "__qualname__", getattr(value, "__name__", repr(value)))
    return f"{module}.{name}" if module else name


def _dtype(value):
    """Return the name of a dtype, as jnp.float32 and numpy.dtype spell it; None for others."""
    import numpy

    if isinstance(value, numpy.dtype):
        return value.name
    if inspect.isclass(value) and issubclass(value, numpy.generic):
        return value.__name__
    if type(value).__name__ == "_ScalarMeta":
        return value.dtype.name
    return None


def _bases(target):
    return target.__mro__[1:-1] if inspect.isclass(target) else ()


def _fields(value):
    return {f.name: getattr(value, f.name) for f in dataclasses.fields(value) if f.init}


def _defaults(target, kind):
    """Return the defaults of a class or function, with what a fresh template of it holds."""
    found = {}
    try:
        parameters = inspect.signature(target).parameters.values()
        found = {p.name: p.default for p in parameters if p.default is not p.empty}
    except (TypeError, ValueError):
        pass
    if inspect.isclass(target) and dataclasses.is_dataclass(target):
        fields = [field for field in dataclasses.fields(target) if field.init]
        plain = {f.name: f.default for f in fields if f.default is not dataclasses.MISSING}
        names = {f.name for f in fields}
        found = {k: v for k, v in found.items() if k in names and k in plain}
        found.update(plain)
    if kind is not None:
        found.update(kind(target).__arguments__)
    return found


def find_experiment(name):
    """Return the class of an experiment: `package.module.Class`, or a name that is registered.

    Args:
      name: Its name.
    """
    module, _, attribute = name.rpartition(".")
    if module:
        found = getattr(importlib.import_module(module), attribute, None)
        if found is not None:
            return found
    from paxml import experiment_registry

    found = experiment_registry.get(name)
    if found is None:
        sys.exit(f"dump_pax: there is no experiment {name!r}")
    return found


def dump_experiment(experiment, name=""):
    """Return an experiment as JSON.

    Args:
      experiment: Its class.
      name: Its name; by default the path of its class.
    """
    # Datasets may need files or services that are gone; the model does not need them.
    built = experiment()
    dumper = Dumper()
    found = {
        "format": FORMAT,
        "version": VERSION,
        "experiment": name or _path(experiment),
        "versions": _versions(),
        "task": dumper.dump(built.task()),
        "datasets": [],
    }
    for kind in ("datasets", "decode_datasets"):
        try:
            nodes = [dumper.dump(data) for data in getattr(built, kind, list)()]
        except Exception as error:  # data that cannot be reached any more
            found["notes"] = found.get("notes", [])
            found["notes"].append("{}: {}".format(kind, " ".join(str(error).split())))
            continue
        if nodes:
            found[kind] = nodes
    found["classes"] = dumper.classes
    return found


def _versions():
    found = {}
    for module in ("paxml", "praxis", "jax", "flax"):
        try:
            imported = importlib.import_module(module)
        except ImportError:
            continue
        version = getattr(imported, "__version__", None)
        found[module] = str(version or _installed(module))
    return found


def _installed(package):
    try:
        from importlib.metadata import version
    except ImportError:
        return ""
    try:
        return version(package)
    except Exception:
        return ""


def find_state(folder):
    """Return the folder of one checkpoint's arrays: that of the last step if there are several.

    Args:
      folder: A job's folder, its `checkpoints`, one `checkpoint_00001000`, or the `state` in it.
    """
    for below in ("state", "checkpoints"):
        if os.path.isdir(os.path.join(folder, below)):
            return find_state(os.path.join(folder, below))
    steps = [n for n in os.listdir(folder) if re.match(r"(checkpoint_)?\d+$", n)]
    if steps:
        last = max(steps, key=lambda name: int(name.rpartition("_")[2]))
        return find_state(os.path.join(folder, last))
    return folder


def open_arrays(state):
    """Open the model's arrays of a checkpoint by name, without reading them.

    Args:
      state: The folder of its arrays.
    """
    # Orbax wrote either one zarr folder per array, or all of them into one OCDBT store, in which
    # names are found by listing its keys: `.zarray` is the one key that each array has once. Only
    # the model's variables are taken, no optimizer state.
    import tensorstore

    prefix = "mdl_vars."
    context = tensorstore.Context()
    is_ocdbt = os.path.exists(os.path.join(state, "manifest.ocdbt"))
    if is_ocdbt:
        store = {"driver": "ocdbt", "base": "file://" + os.path.abspath(state)}
        keys = tensorstore.KvStore.open(store, context=context).result().list().result()
        names = {k.decode().rpartition("/")[0] for k in keys if k.endswith(b"/.zarray")}
    else:
        names = {n for n in os.listdir(state) if os.path.exists(os.path.join(state, n, ".zarray"))}
    found = {}
    for name in sorted(names):
        if not name.startswith(prefix):
            continue
        if is_ocdbt:
            inside = {"driver": "ocdbt", "base": "file://" + os.path.abspath(state), "path": name}
        else:
            inside = {"driver": "file", "path": os.path.join(os.path.abspath(state), name)}
        spec = {"driver": "zarr", "kvstore": inside}
        opened = tensorstore.open(spec, open=True, context=context).result()
        found[name[len(prefix) :]] = opened
    if not found:
        sys.exit(f"dump_pax: {state} holds no arrays of a model")
    return found


def describe(arrays):
    """Return shapes and dtypes of arrays by name.

    Args:
      arrays: The result of `open_arrays`.
    """
    return {
        name: {"shape": list(array.shape), "dtype": _name_of(array)}
        for name, array in arrays.items()
    }


def _name_of(array):
    dtype = array.dtype
    return str(getattr(dtype, "name", dtype))


def write_safetensors(arrays, path, metadata):
    """Write arrays as a safetensors file, reading one at a time.

    Args:
      arrays: The result of `open_arrays`, or NumPy arrays.
      path: The file.
      metadata: Strings by name.
    """
    # By hand, since `safetensors` need not be installed there, and because it would need all arrays
    # in memory: the header (length, JSON of offsets, padded to 8 bytes) follows from the shapes
    # alone.
    import numpy

    header, start = {"__metadata__": metadata}, 0
    for name in sorted(arrays):
        array = arrays[name]
        dtype = _name_of(array)
        # NumPy knows bfloat16 only where ml_dtypes has registered it.
        size = 2 if dtype == "bfloat16" else numpy.dtype(dtype).itemsize
        end = start + size * int(numpy.prod(array.shape, dtype=numpy.int64))
        header[name] = {
            "dtype": _SAFETENSORS[dtype],
            "shape": list(array.shape),
            "data_offsets": [start, end],
        }
        start = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for name in sorted(arrays):
            array = arrays[name]
            whole = array.read().result() if hasattr(array, "read") else array
            file.write(numpy.ascontiguousarray(whole).tobytes())


def main(argv):
    """Run the command line.

    Args:
      argv: Its arguments.
    """
    # Modules of Pax may read absl flags when they are imported, which fails unless they are parsed.
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("experiment", help="package.module.Class, or a registered name")
    parser.add_argument("--module", action="append", default=[], help="to import before")
    parser.add_argument("--output", default="experiment.json", help="default: experiment.json")
    parser.add_argument("--checkpoint", help="a checkpoint, or the job's folder: the last one")
    parser.add_argument("--weights", help="write the checkpoint's weights as safetensors")
    given = parser.parse_args(argv)
    if given.weights and not given.checkpoint:
        parser.error("--weights needs --checkpoint")
    # `python dump_pax.py` puts the folder of this file on the path, not the user's.
    sys.path.insert(0, os.getcwd())
    from absl import flags

    if not flags.FLAGS.is_parsed():
        flags.FLAGS.mark_as_parsed()
    for module in given.module:
        importlib.import_module(module)
    found = dump_experiment(find_experiment(given.experiment), given.experiment)
    if given.checkpoint:
        arrays = open_arrays(find_state(given.checkpoint))
        found["variables"] = describe(arrays)
        if given.weights:
            write_safetensors(arrays, given.weights, {"experiment": given.experiment})
    with open(given.output, "w") as file:
        json.dump(found, file, indent=1, sort_keys=True)
        file.write("\n")
    print(f"{given.output}: {given.experiment}")


if __name__ == "__main__":
    main(sys.argv[1:])
