"""Dumps of Pax: those that Pax wrote, whole or changed, and nodes that stand alone."""

import copy
import gzip
import json
import zipfile
from pathlib import Path

import pytest

from luthier.recipes.foreign.pax import Dump

GOLDENS = Path(__file__).parent / "goldens"


def _bytes(name):
    """Return what a golden file holds, which may be compressed."""
    if (GOLDENS / name).exists():
        return (GOLDENS / name).read_bytes()
    return gzip.decompress((GOLDENS / f"{name}.gz").read_bytes())


def _change(content, path, value):
    """Set what is at `task.model.lm_tpl` and so on, of which defaults are spelled out."""
    first, *keys = path.split(".")
    node = content[first]
    for key in keys[:-1]:
        default = content["classes"][node["class"]]["defaults"].get(key)
        node = node["set"].setdefault(key, copy.deepcopy(default))
    node["set"][keys[-1]] = value


@pytest.fixture(scope="session")
def content():
    """What a golden dump says, with changes by path."""

    def make(name, **changes):
        found = json.loads(_bytes(f"{name}.json"))
        for path, value in changes.items():
            _change(found, path.replace("__", "."), value)
        return found

    return make


@pytest.fixture
def dump(content):
    """A golden dump, with changes by path."""
    return lambda name, **changes: Dump(content(name, **changes), f"{name}.json")


@pytest.fixture
def written(content, tmp_path):
    """The file of a golden dump, with changes by path."""

    def make(name, **changes):
        path = tmp_path / f"{name}.json"
        path.write_text(json.dumps(content(name, **changes)))
        return path

    return make


@pytest.fixture
def node():
    """A node of a class whose settings are all set."""

    def make(kind, parent=None, **settings):
        target = f"praxis.{kind}"
        task = {"class": target, "set": settings}
        classes = {target: {"bases": ["praxis.base_layer.BaseLayer"], "defaults": {}}}
        return Dump({"experiment": "my.Lm", "classes": classes, "task": task}, "x.json").task

    return make


@pytest.fixture
def lm(dump):
    """The `TransformerLm` of a golden dump, with changes by path below it."""

    def make(name, **changes):
        below = {f"task__model__lm_tpl__{path}": value for path, value in changes.items()}
        return dump(name, **below).task.get("model").get("lm_tpl")

    return make


@pytest.fixture
def weights(tmp_path):
    """The checkpoint of a golden, or the file of its weights."""

    def find(name):
        if (GOLDENS / f"{name}.zip").exists():
            with zipfile.ZipFile(GOLDENS / f"{name}.zip") as archive:
                archive.extractall(tmp_path / name)
            return str(tmp_path / name)
        path = tmp_path / f"{name}.safetensors"
        path.write_bytes(_bytes(path.name))
        return str(path)

    return find
