"""Leaves of a graph as JSON, and back: numbers, names, dtypes, enums, paths, partition specs.

Values of JSON's own types are written as they are. Everything else is an object with a key that
identifies its type: `{"name": "jax.nn.gelu"}`, `{"dtype": "bfloat16"}`, `{"float": "inf"}`.
"""

from __future__ import annotations

import enum
import functools
import importlib
import math
import pathlib
import sys
import types
from collections.abc import Callable, Mapping
from typing import Any

from luthier.errors import Problem, RecordError
from luthier.graph.public_names import display_name, public_name

_PATHS: Mapping[str, type] = {
    "Path": pathlib.Path,
    "PurePath": pathlib.PurePath,
    "PurePosixPath": pathlib.PurePosixPath,
    "PureWindowsPath": pathlib.PureWindowsPath,
}
_ARRAY_REMEDY = "describe how to make it: fdl.Config of a function, or a file to read at building"


def encode_leaf(value: Any) -> Any:
    """Encode a leaf as JSON.

    Args:
      value: Anything that is not a node, list, tuple, dict, set or dataclass instance.

    Raises:
      RecordError: There is no way to write it that another process could read.
    """
    # By exact type: a subclass of int or str (an IntEnum, a numpy.float64, which is a float) would
    # come back as its base. NumPy and JAX are looked up in `sys.modules` and never imported: a
    # value of theirs cannot exist before somebody else has imported them.
    kind = type(value)
    if value is None or kind is bool or kind is int or kind is str:
        return value
    if kind is float:
        return value if math.isfinite(value) else {"float": repr(value)}
    if isinstance(value, enum.Enum):
        return _encode_enum(value)
    encoder = _ENCODERS.get(kind)
    if encoder is not None:
        return encoder(value)
    if isinstance(value, pathlib.PurePath):
        return _encode_path(value)
    if (numeric := _encode_numeric(value)) is not None:
        return numeric
    if isinstance(value, type) or callable(value):
        return _encode_callable(value)
    return _encode_object(value)


def is_singleton(value: Any) -> bool:
    """Return whether Python has one object of this value only, so that sharing means nothing."""
    if isinstance(value, type | enum.Enum) or value is Ellipsis:
        return True
    numpy = sys.modules.get("numpy")
    return (numpy is not None and isinstance(value, numpy.dtype)) or (
        callable(value) and hasattr(value, "__name__")
    )


def _encode_enum(value: enum.Enum) -> Any:
    name = {"enum": public_name(type(value))}
    if value.name is not None and type(value).__members__.get(value.name) is value:
        return name | {"member": value.name}
    return name | {"value": encode_leaf(value.value)}  # a combination of flags


def _encode_path(value: pathlib.PurePath) -> Any:
    kinds = ("Path", "PurePosixPath", "PureWindowsPath", "PurePath")
    return {
        "path": str(value),
        "kind": next(kind for kind in kinds if isinstance(value, _PATHS[kind])),
    }


_ENCODERS: Mapping[type, Callable[[Any], Any]] = {
    complex: lambda value: {"complex": repr(value)},
    bytes: lambda value: {"bytes": value.hex()},
    range: lambda value: {"range": [value.start, value.stop, value.step]},
    slice: lambda value: {"slice": [encode_leaf(x) for x in (value.start, value.stop, value.step)]},
    type(Ellipsis): lambda value: {"ellipsis": True},
}


def _encode_numeric(value: Any) -> Any:
    """Return the JSON of a numpy or jax value; None for any other."""
    numpy, jax = sys.modules.get("numpy"), sys.modules.get("jax")
    if jax is not None and isinstance(value, jax.sharding.PartitionSpec):
        return _encode_partition_spec(value)
    if numpy is None:
        return None
    if isinstance(value, numpy.dtype):
        for name in (value.name, value.str):
            if _dtype(name) == value:
                return {"dtype": name}
        _refuse(f"the dtype {value} has no name", "use a plain dtype")
    if isinstance(value, numpy.generic) and isinstance(value.item(), bool | int | float | complex):
        # Only if Python's number gives the same scalar back; not-a-number is unequal to itself.
        same = value.dtype.type(value.item()) == value or value != value
        if same:
            return {"dtype": value.dtype.name, "value": encode_leaf(value.item())}
    if isinstance(value, numpy.ndarray) or (jax is not None and isinstance(value, jax.Array)):
        shape = getattr(value, "shape", ())
        _refuse(f"an array of {value.dtype}{list(shape)} cannot be recorded", _ARRAY_REMEDY)
    return None


def _encode_partition_spec(value: Any) -> Any:
    entries = [list(entry) if isinstance(entry, tuple) else entry for entry in value]
    named = [name for entry in entries for name in (entry if isinstance(entry, list) else [entry])]
    if not all(name is None or isinstance(name, str) for name in named):
        _refuse(f"{value} cannot be recorded", "name mesh axes only")
    return {"partition_spec": entries}


def _encode_callable(value: Any) -> Any:
    if isinstance(value, functools.partial):
        inner = display_name(value.func)
        _refuse("a functools.partial cannot be recorded", f"use fdl.Partial({inner}, ...)")
    return {"name": public_name(value)}


def _encode_object(value: Any) -> Any:
    if isinstance(value, types.ModuleType):
        _refuse(
            f"the module {value.__name__} cannot be recorded",
            "name the class or function that you need from it",
        )
    try:
        return {"name": public_name(value)}  # a constant of a public module
    except RecordError:
        pass
    cls = display_name(type(value))
    if isinstance(value, dict | list | tuple | set | frozenset):
        _refuse(f"a {cls} cannot be recorded", "use a plain dict, list, tuple or set")
    _refuse(f"an object of {cls} cannot be recorded", f"use fdl.Config({cls}, ...)")


def _refuse(what: str, remedy: str) -> None:
    raise RecordError(Problem(what, remedy=remedy))


def _dtype(name: str) -> Any:
    """Return the dtype of that name, or None."""
    # `numpy.dtype("bfloat16")` works only after jax has registered its types, which takes an import
    # of jax; so numpy is asked alone first.
    import numpy

    for module in ("numpy", "jax.numpy"):
        importlib.import_module(module)
        try:
            return numpy.dtype(name)
        except TypeError:
            continue
    return None


def _decode_enum(data: dict[str, Any], load: Callable[[str], Any]) -> Any:
    cls = load(data["enum"])
    if not (isinstance(cls, type) and issubclass(cls, enum.Enum)):
        raise RecordError(Problem(f"{data['enum']!r} is not an enum"))
    if "member" not in data:
        return cls(decode_leaf(data["value"], load))
    if data["member"] not in cls.__members__:
        members = ", ".join(cls.__members__)
        raise RecordError(Problem(f"{data['enum']} has no {data['member']!r}; it has {members}"))
    return cls.__members__[data["member"]]


def _decode_dtype(data: dict[str, Any], load: Callable[[str], Any]) -> Any:
    dtype = _dtype(data["dtype"])
    if dtype is None:
        raise RecordError(Problem(f"cannot read the dtype {data['dtype']!r}"))
    return dtype.type(decode_leaf(data["value"], load)) if "value" in data else dtype


def _decode_partition_spec(data: dict[str, Any], load: Callable[[str], Any]) -> Any:
    import jax

    entries = data["partition_spec"]
    return jax.sharding.PartitionSpec(*[tuple(e) if isinstance(e, list) else e for e in entries])


# The identifying key of each leaf -> its decoder.
_DECODERS: Mapping[str, Callable[[dict[str, Any], Callable[[str], Any]], Any]] = {
    "name": lambda data, load: load(data["name"]),
    "float": lambda data, load: float(data["float"]),
    "complex": lambda data, load: complex(data["complex"]),
    "bytes": lambda data, load: bytes.fromhex(data["bytes"]),
    "range": lambda data, load: range(*data["range"]),
    "slice": lambda data, load: slice(*[decode_leaf(x, load) for x in data["slice"]]),
    "ellipsis": lambda data, load: Ellipsis,
    "path": lambda data, load: _PATHS[data["kind"]](data["path"]),
    "enum": _decode_enum,
    "dtype": _decode_dtype,
    "partition_spec": _decode_partition_spec,
}


def decode_leaf(data: Any, load: Callable[[str], Any]) -> Any:
    """Decode a leaf that `encode_leaf` wrote.

    Args:
      data: A JSON value.
      load: Returns the object of a dotted name.

    Raises:
      RecordError: It is not a leaf, or is damaged.
    """
    if not isinstance(data, dict | list):
        return data
    key = next((key for key in data if isinstance(key, str) and key in _DECODERS), None)
    if key is None or isinstance(data, list):
        raise RecordError(Problem(f"cannot read {_shorten(data)}"))
    try:
        return _DECODERS[key](data, load)
    except RecordError:
        raise
    except Exception as error:
        what = f"cannot read {_shorten(data)}: {type(error).__name__}: {error}"
        raise RecordError(Problem(what)) from error


def is_leaf(data: Mapping[str, Any]) -> bool:
    """Return whether `encode_leaf` wrote a JSON object."""
    return any(key in _DECODERS for key in data)


def _shorten(data: Any) -> str:
    text = repr(data)
    return text if len(text) <= 60 else text[:57] + "..."
