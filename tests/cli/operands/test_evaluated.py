from __future__ import annotations

import json
import subprocess
import sys

import pytest

from luthier import graph as graphs
from luthier.cli import operands


def test_the_answer_is_a_record_with_its_history_and_values(tiny):
    found = operands.answer("trials.tiny", ["seed=3"])
    assert graphs.equal(graphs.from_json(found["text"]), graphs.apply(tiny, ["seed=3"]))
    assert found["history"]["sets"]["seed"][-1]["origin"] == "argument 1: seed=3"
    assert found["values"]["model"]["dim"] == 16


def test_what_is_wrong_is_the_answer(tiny):
    found = operands.answer("trials.tinny", [])
    assert found == {"problems": ["there is no module 'trials.tinny'; did you mean trials.tiny?"]}


@pytest.mark.full
def test_what_is_below_the_root_is_not_imported(tmp_path):
    root, copy = tmp_path / "root", tmp_path / "copy"
    for folder, seed in ((root, 1), (copy, 2)):
        folder.mkdir()
        (folder / "mine.py").write_text(
            "import fiddle as fdl\n\nfrom luthier import optim\n\n"
            f"def experiment():\n    return fdl.Config(optim.Constant, {seed}.0)\n"
        )
    (root / "only_here.py").write_text("")
    code = f"import sys; sys.path += [{str(root)!r}]; sys.path[:0] = [{str(copy)!r}]\n"
    code += "from luthier.cli.operands import evaluated; evaluated.main(sys.argv[1:])\n"
    code += "import importlib.util; sys.exit(importlib.util.find_spec('only_here') is not None)"
    answer = tmp_path / "answer.json"
    command = [sys.executable, "-c", code, str(answer), str(root), "mine"]
    assert subprocess.run(command, check=False, cwd=copy).returncode == 0
    assert '"value": 2.0' in json.loads(answer.read_text())["text"]
