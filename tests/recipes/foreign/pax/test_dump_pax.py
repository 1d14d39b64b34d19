import ast
import dataclasses
import enum
import json
import struct
import subprocess
import sys
import types

import fiddle as fdl
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from luthier.cli.commands.importing import dumper
from luthier.recipes.foreign.pax import dump_pax, read_dump


class Policy(enum.Enum):
    NOTHING = "nothing"


@dataclasses.dataclass
class Inner:
    size: int = 3
    kind: type = jnp.float32


@dataclasses.dataclass
class Outer(Inner):
    inner: Inner = dataclasses.field(default_factory=Inner)
    rate: float = 0.1
    rest: dict = dataclasses.field(default_factory=dict)


class Lm:
    def task(self):
        node = fdl.Config(Outer, rate=0.5, inner=fdl.Config(Inner, size=4))
        node.rest = {"policy": Policy.NOTHING, "sizes": (1, 2), "function": len, "limit": 1e400}
        return node

    def datasets(self):
        raise RuntimeError("no files\nany more")


def test_it_is_python_of_3_8():
    assert ast.parse(dumper(), feature_version=(3, 8))


def test_it_needs_nothing_but_the_standard_library_until_it_runs(tmp_path):
    path = tmp_path / "dump_pax.py"
    path.write_text(dumper())
    code = (
        "import runpy, sys; sys.modules['luthier'] = sys.modules['numpy'] = None\n"
        "sys.argv = ['dump_pax.py', '--help']; runpy.run_path('dump_pax.py', run_name='__main__')"
    )
    command = [sys.executable, "-S", "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "package.module.Class" in done.stdout


def test_a_dump_holds_what_differs_from_class_defaults(tmp_path):
    found = dump_pax.dump_experiment(Lm)
    assert found["task"]["class"] == f"{__name__}.Outer"
    assert found["task"]["set"]["rate"] == 0.5
    assert found["task"]["set"]["inner"] == {"class": f"{__name__}.Inner", "set": {"size": 4}}
    assert found["task"]["set"]["rest"]["dict"] == {
        "policy": {"enum": f"{__name__}.Policy", "value": "nothing"},
        "sizes": [1, 2],
        "function": {"name": "builtins.len"},
        "limit": {"float": "inf"},
    }
    entry = found["classes"][f"{__name__}.Outer"]
    assert entry["bases"] == [f"{__name__}.Inner"]
    assert entry["defaults"]["size"] == 3
    assert entry["defaults"]["kind"] == {"dtype": "float32"}
    assert found["notes"] == ["datasets: no files any more"]
    path = tmp_path / "x.json"
    path.write_text(json.dumps(found))
    root = read_dump(path).task
    assert (root.get("inner").get("size"), root.get("size")) == (4, 3)


def test_objects_dump_their_plain_attributes():
    instance = types.SimpleNamespace(size=3, other=object(), cls=Inner)
    found = dump_pax.Dumper().dump(instance)
    attributes = {"cls": f"{__name__}.Inner", "size": 3}
    assert found == {"object": "types.SimpleNamespace", "set": attributes}


@pytest.mark.parametrize("name", ["c4", "llama"])
def test_checkpoints_of_both_forms_are_described(name, content, weights):
    arrays = dump_pax.open_arrays(dump_pax.find_state(weights(name)))
    assert dump_pax.describe(arrays) == content(name)["variables"]


def test_safetensors_are_those_of_the_library(tmp_path):
    from safetensors.numpy import load_file

    arrays = {
        "b": np.arange(6, dtype=np.float32).reshape(2, 3),
        "a": np.ones(3, ml_dtypes.bfloat16),
        "c": np.int32(7)[None],
    }
    path = tmp_path / "x.safetensors"
    dump_pax.write_safetensors(arrays, str(path), {"experiment": "my.Lm"})
    found = load_file(path)
    assert set(found) == set(arrays)
    for name, array in arrays.items():
        np.testing.assert_array_equal(found[name], array)
        assert found[name].dtype == array.dtype
    (size,) = struct.unpack("<Q", path.read_bytes()[:8])
    assert size % 8 == 0


def test_what_is_not_a_checkpoint_is_refused(tmp_path):
    with pytest.raises(SystemExit, match="holds no arrays of a model"):
        dump_pax.open_arrays(dump_pax.find_state(str(tmp_path)))
