"""Commands that look write nothing: not in the run, not in the project, not at home."""

import os
import shutil

import pytest

from luthier.cli import main

# What `luthier help security` says is kept for the user, below XDG_CACHE_HOME: plans that were
# compiled, and effects of graphs.
CACHE = "cache"


def _state(folder):
    """Return each file and folder, with what changes when it is written."""
    found = {}
    for place, folders, names in os.walk(folder):
        for name in (*folders, *names):
            path = os.path.join(place, name)
            status = os.lstat(path)
            is_folder = name in folders
            found[os.path.relpath(path, folder)] = (
                status.st_ino,
                status.st_mode,
                status.st_mtime_ns,
                None if is_folder else status.st_size,
            )
    return found


@pytest.mark.parametrize(
    "words",
    [
        ("runs",),
        ("runs", "last"),
        ("runs", "last", "--goodput"),
        ("runs", "last", "last", "--diff"),
        ("show", "trials.tiny", "--defaults"),
        ("show", "run:last", "--why"),
        ("show", "run:last", "--params"),
        ("diff", "run:last", "trials.tiny", "--why"),
        ("diff", "run:last", "run:last", "--effects"),
        ("plan", "trials.tiny", "--slice", "cpu:1", "--level", "shapes"),
        ("plan", "run:last", "--slice", "cpu:1", "--level", "shapes"),
        ("check", "trials.tiny", "run:last"),
        ("train", "trials.tiny", "--dry-run"),
        ("train", "trials.tiny", "seed=3", "--dry-run"),
        ("train", "run:last", "--dry-run"),
        ("launch", "--print", "--on", "slurm:nodes=2", "--", "train", "trials.tiny"),
    ],
    ids=" ".join,
)
def test_commands_that_look_write_nothing(words, trained, tmp_path, monkeypatch, capsys):
    project, home, cache = (tmp_path / name for name in ("project", "home", CACHE))
    shutil.copytree(trained, project, symlinks=True)
    home.mkdir()
    cache.mkdir()
    monkeypatch.chdir(project)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    monkeypatch.setattr("sys.dont_write_bytecode", True)
    before = {place: _state(place) for place in (project, home)}
    assert main([*words]) in ((0, 1) if words[0] == "diff" else (0,))
    assert capsys.readouterr().out
    for place, state in before.items():
        now = _state(place)
        assert {k: v for k, v in now.items() if state.get(k) != v} == {}, place
        assert now.keys() == state.keys()
    assert {path.parts[-2:] for path in cache.glob("*/*")} <= {
        ("luthier", "effects"),
        ("luthier", "plans"),
        ("luthier", "jax"),
    }
