"""The recorded graph alone, without the repository, is the graph that ran."""

import os
import subprocess
import sys

import pytest

from luthier import graph as graphs

REBUILD = """
import sys
import luthier.graph as graphs
text = open(sys.argv[1]).read()
graph = graphs.from_json(text)
assert "configs" not in sys.modules
assert graphs.to_json(graph) == text.rstrip("\\n") or graphs.to_json(graph) == text
graphs.validate(graph)
assert graphs.build(graph).name == "quickstart"
print(graphs.fingerprint(graph), graphs.fingerprint(graph, kind="program"))
"""


@pytest.fixture(scope="module")
def recorded(shrunk, tmp_path_factory):
    graph = shrunk()
    path = tmp_path_factory.mktemp("recorded") / "config.json"
    path.write_text(graphs.to_json(graph))
    return graph, path


@pytest.mark.full
@pytest.mark.parametrize("seed", ["0", "12345"])
def test_it_rebuilds_elsewhere_to_the_same_fingerprints(recorded, tmp_path, seed):
    graph, path = recorded
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    done = subprocess.run(
        [sys.executable, "-c", REBUILD, str(path)],
        cwd=tmp_path,
        env=environment | {"PYTHONHASHSEED": seed},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    expected = [graphs.fingerprint(graph), graphs.fingerprint(graph, kind="program")]
    assert done.stdout.split() == expected


def test_every_single_changed_leaf_changes_the_fingerprint(recorded):
    graph, _ = recorded
    fingerprints = {graphs.fingerprint(graph): "the graph"}
    leaves = 0
    for place in graphs.walk(graph, defaults=False):
        value = graphs.evaluate(place.value)
        if isinstance(value, bool) or not isinstance(value, int | float | str):
            continue
        changed = graphs.copy_graph(graph)
        graphs.set_value(changed, place.path, value + ("x" if isinstance(value, str) else 1))
        found = graphs.fingerprint(changed)
        same = fingerprints.get(found)
        shared = same is not None and graphs.is_value_node(place.value)
        assert same is None or shared, f"{place.path} changes as {same} does"
        fingerprints[found] = place.path
        leaves += 1
    assert leaves > 25
