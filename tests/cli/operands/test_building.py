from __future__ import annotations

import jax
import pytest

from luthier import graph as graphs
from luthier.cli import operands
from luthier.cli.operands import Record, of_graph, of_record
from luthier.errors import BadInput


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    jax.devices()  # are those of the tests, whatever the sides ask for


@pytest.mark.full
def test_each_side_is_planned_on_as_many_devices_as_its_mesh_has(tiny, capsys):
    sides = [
        of_graph("a", lambda: tiny),
        of_graph("b", lambda: graphs.apply(tiny, ["parallelism.mesh.fsdp=2"])),
    ]
    found = operands.effects_of(*sides)
    notes = {q["note"] for q in found["quantities"] if q["group"] == "each device"}
    assert notes == {"", "of 1 x cpu and 2 x cpu"}
    assert capsys.readouterr().err == ""


@pytest.mark.full
def test_a_record_is_built_with_a_notice(tiny, capsys):
    recorded = of_record("run:x", Record(graphs.to_json(tiny)))
    found = operands.effects_of(recorded, of_graph("b", lambda: tiny))
    assert all(q["before"] == q["after"] for q in found["quantities"])
    assert capsys.readouterr().err == (
        "luthier: computing effects imports the classes that the records name (run:x)\n"
    )


def test_a_record_may_name_nothing_else(tiny):
    text = graphs.to_json(tiny).replace("luthier.models.Decoder", "subprocess.run")
    with pytest.raises(BadInput, match=r"model: .*subprocess"):
        operands.effects_of(of_record("x", Record(text)), of_graph("b", lambda: tiny))


def test_only_experiments_have_effects(tiny):
    with pytest.raises(BadInput, match=r"^b is not an experiment, so it has no effects$"):
        operands.effects_of(of_graph("a", lambda: tiny), of_graph("b", lambda: tiny.model))


def test_devices_that_are_not_here_are_refused(tiny):
    many = graphs.apply(tiny, ["parallelism.mesh.fsdp=64"])
    with pytest.raises(BadInput, match="cpu:64 comes too late: JAX runs on cpu:8"):
        operands.effects_of(of_graph("a", lambda: many), of_graph("b", lambda: many))
    wrong = [of_graph("a", lambda: tiny)] * 2
    with pytest.raises(BadInput, match="cannot read 'abacus'"):
        operands.effects_of(*wrong, devices="abacus")
    assert len(jax.devices()) == 8
