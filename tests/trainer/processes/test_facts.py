import pytest

from luthier import graph as graphs
from luthier.parallel import distributed
from luthier.trainer import processes
from luthier.trainer.processes import check_devices, check_same


@pytest.fixture
def compared(monkeypatch):
    """Return what is compared, as in several processes."""
    compared = []
    monkeypatch.setattr(distributed, "is_several", lambda: True)
    monkeypatch.setattr(distributed, "agree", lambda facts: compared.append(dict(facts)))
    return compared


def test_the_experiment_the_versions_and_the_source_are_compared(compared, tiny, tmp_path):
    graph = tiny(tmp_path)
    check_same(graph, ["configs"])
    (facts,) = compared
    hashes = [graphs.fingerprint(graph, kind=kind)[:12] for kind in ("record", "program")]
    assert facts["the experiment"] == "{} (program {})".format(*hashes)
    assert {"the version of jax", "the version of luthier", "the version of Python"} <= set(facts)
    assert {"the source of luthier", "the source of configs"} <= set(facts)
    check_same(graphs.apply(graph, ["checkpoints.every.count=6"]))
    assert compared[1]["the experiment"] != facts["the experiment"]


def test_devices_are_compared(compared):
    check_devices()
    assert compared == [{"its devices": "8 x cpu"}]


@pytest.mark.full
def test_one_process_has_nothing_to_compare(monkeypatch):
    monkeypatch.setattr(distributed, "agree", lambda facts: pytest.fail("compared"))
    monkeypatch.setattr(processes, "read_facts", lambda packages: pytest.fail("read"))
    check_same(None)
    check_devices()
