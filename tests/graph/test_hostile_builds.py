"""Whatever a record holds, building what is listed only describes: nothing outside is touched."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys

import pytest

CHILD = pathlib.Path(__file__).with_name("hostile_builds.py")
CONTROL = {"config": "acting.act", "arguments": {"path": "owned"}}


def _run(folder, count, *control):
    home = folder / "home"
    home.mkdir()
    # The suite's cache of compiled programs would be written at builds that compute something.
    inherited = {name: text for name, text in os.environ.items() if not name.startswith("JAX_")}
    environment = {**inherited, "HOME": str(home), "JAX_PLATFORMS": "cpu"}
    environment |= {"PYTHONDONTWRITEBYTECODE": "1", "PYTHONPATH": str(folder / "packages")}
    done = subprocess.run(
        [sys.executable, str(CHILD), str(count), "20261123", *control],
        cwd=home,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1]), sorted(path.name for path in home.rglob("*"))


@pytest.mark.full
def test_an_effect_is_seen(tmp_path):
    (tmp_path / "packages").mkdir()
    acting = "def act(path):\n    open(path, 'w').close()\n"
    (tmp_path / "packages" / "acting.py").write_text(acting)
    found, left = _run(tmp_path, 60, json.dumps(CONTROL), "acting")
    assert [effect for effect in found["effects"] if "acting.act" in effect and "open" in effect]
    assert left == ["owned"]


@pytest.mark.parametrize("count", [400, pytest.param(20_000, marks=pytest.mark.slow)])
def test_building_listed_names_touches_nothing(tmp_path, count):
    found, left = _run(tmp_path, count)
    assert found["effects"] == []
    assert left == []
    assert found["built"] + found["refused"] + found["failed"] + found["late"] == count
    assert found["built"] > count / 10
