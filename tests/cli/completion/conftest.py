"""A project with an experiment whose index is there, and a command `luthier` on the PATH."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from luthier.cli import completion

EXPERIMENT = '''"""A toy."""
import fiddle as fdl

from luthier import optim, program


def experiment() -> fdl.Config[program.Experiment]:
    """Train a toy."""
    return fdl.Config(
        program.Experiment,
        name="toy",
        optimizer=fdl.Config(optim.adamw, learning_rate=fdl.Config(optim.Constant, 1e-3)),
        training=fdl.Config(program.Training, steps=3, global_batch_size=2),
    )


def other():
    """Not an experiment."""
'''


@pytest.fixture
def cache(tmp_path, monkeypatch) -> Path:
    """The folder of the cache, of this test alone."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "luthier" / "completion"


@pytest.fixture
def project(tmp_path, cache, monkeypatch) -> Iterator[Path]:
    """A folder with `configs.toy`, a run, and no index yet; the working directory."""
    folder = tmp_path / "project"
    (folder / "configs").mkdir(parents=True)
    (folder / "configs" / "__init__.py").write_text("")
    (folder / "configs" / "toy.py").write_text(EXPERIMENT)
    (folder / "runs" / "toy" / "0a1b2c3d").mkdir(parents=True)
    (folder / "runs" / "toy" / "0a1b2c3d" / "config.json").write_text("{}")
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(folder)
    for name in [name for name in sys.modules if name.split(".")[0] == "configs"]:
        monkeypatch.delitem(sys.modules, name)
    yield folder
    # Where `configs` was not imported before, nothing would put this one away.
    for name in [name for name in sys.modules if name.split(".")[0] == "configs"]:
        del sys.modules[name]


@pytest.fixture
def indexed(project) -> Path:
    """The project, with the index of `configs.toy`."""
    completion.build("configs.toy")
    return project


@pytest.fixture
def shell(indexed, tmp_path, monkeypatch) -> dict[str, str]:
    """The environment of a shell in the project: `luthier` is on its PATH."""
    bin = tmp_path / "bin"
    bin.mkdir()
    (bin / "luthier").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m luthier "$@"\n')
    (bin / "luthier").chmod(0o755)
    environment = os.environ | {"PATH": f"{bin}:{os.environ['PATH']}", "HOME": str(tmp_path)}
    for name in ("bash", "zsh", "fish"):
        script = subprocess.run(
            [str(bin / "luthier"), "completion", name], capture_output=True, text=True, check=True
        )
        (tmp_path / f"completion.{name}").write_text(script.stdout)
        environment[f"{name.upper()}_SCRIPT"] = str(tmp_path / f"completion.{name}")
    return environment
