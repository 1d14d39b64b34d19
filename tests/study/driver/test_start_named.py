"""Values that gin files and ConfigDicts set are swept by their names."""

from __future__ import annotations

import pathlib

import fiddle as fdl
import pytest
import simulated_engine as toys

from luthier import graph as graphs
from luthier import study as studies
from luthier.errors import BadInput
from luthier.study import Choice, Editing, Log, Pow2, Space, locate
from luthier.study.driver import read_journal
from luthier.study.views import describe, read_status

GIN = "RATE = 0.01\nWIDTH = 16\nToy.rate = %RATE\nMomentum.rate = %RATE\nToy.width = %WIDTH\n"

CONFIG = """
from ml_collections import config_dict

def get_config():
    config = config_dict.ConfigDict()
    config.rate = config_dict.FieldReference(0.01)
    config.width = 16
    config.optimizer = dict(rate=config.get_ref('rate') * 2)
    return config
"""

FORMS = {"gin": ("gin_file:toy.gin", "gin:RATE", "gin:WIDTH")}
FORMS["config_dict"] = ("config_dict:toy.py", "config_dict:rate", "config_dict:width")


def _values(directory):
    """Return the values of a trial; what a name is for is a node in its record."""
    text = pathlib.Path(directory, "config.json").read_text()
    graph = graphs.from_json(text, toys.PACKAGES)
    return {name: graphs.evaluate(value) for name, value in graph.__arguments__.items()}


@pytest.fixture(params=FORMS)
def named(request, tmp_path, monkeypatch):
    """A base with values that a file set, and what they are called."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(toys, "read_values", _values)
    (tmp_path / "toy.gin").write_text(GIN)
    (tmp_path / "toy.py").write_text(CONFIG)
    file, rate, width = FORMS[request.param]
    base = fdl.Config(toys.Toy, optimizer=fdl.Config(toys.Momentum))
    return graphs.apply(base, [file]), rate, width


def _study(base, rate, width, trials=6):
    space = fdl.Config(Space, {rate: Log(1e-4, 1e-1), width: Pow2(8, 32)})
    return toys.make_study(
        "tpe",
        base=base,
        space=space,
        directory="studies",
        budget=fdl.Config(studies.Budget, trials=trials),
    )


def _run(study):
    return studies.run(study, packages=toys.PACKAGES, engine=toys.InstantEngine())


def test_names_are_swept_reported_and_gone_on_with(named, tmp_path):
    base, rate, width = named
    outcome = _run(_study(base, rate, width))
    words = [setting.words for setting in outcome.ledger.settings]
    assert words[0] == ()
    assert all([w.split("=")[0] for w in found] == [rate, width] for found in words[1:])
    graph = studies.trial_graph("toy/3")
    chosen = float(words[3][0].partition("=")[2])
    assert graphs.evaluate(graph.rate) == chosen
    ratio = 1 if rate.startswith("gin:") else 2
    assert graphs.evaluate(graph.optimizer.rate) == ratio * chosen
    assert graphs.origin_of(graph, "rate") == f"trial 3: {words[3][0]}"
    (asked,) = [
        line
        for line in read_journal(outcome.directory / "journal.jsonl")
        if line["kind"] == "asked" and not line["setting"]
    ]
    assert asked["assignment"] == {rate: 0.01, width: 4}
    # What `sweep best --as overrides` prints makes the graph of the trial from the experiment.
    (best,) = read_status(outcome.directory).best()
    again = graphs.apply(base, list(words[best.setting]))
    trial = studies.trial_graph(f"toy/{best.number}")
    assert graphs.fingerprint(again, "program") == graphs.fingerprint(trial, "program")
    assert not any(change.is_effective for change in graphs.diff(again, trial))
    outcome = studies.resume("toy", _study(base, rate, width, 9), engine=toys.InstantEngine())
    assert len(outcome.ledger.trials) == 9
    rows = describe(outcome.directory)["matrix"]["rows"]
    assert [row["path"] for row in rows] == [rate, width]
    assert rows[0]["texts"][:2] == ["0.01", words[1][0].partition("=")[2]]


def test_a_name_and_the_path_of_its_value_overlap(named):
    base, rate, _ = named
    study = _study(base, rate, "rate")
    with pytest.raises(BadInput) as raised:
        _run(study)
    lines = [str(problem) for problem in raised.value.problems]
    assert f"rate: overlaps with {rate}: both set rate [set by space]" in lines[-1]


def test_an_unknown_name_is_reported_with_the_nearest(named):
    base, rate, width = named
    with pytest.raises(BadInput) as raised:
        _run(_study(base, rate + "S", width))
    (problem,) = raised.value.problems
    assert str(problem).endswith(f"did you mean {rate}?")


def test_values_that_are_no_words_are_chosen_by_name(named):
    base, _, width = named
    space = Space({width: Choice([8, 16, 32])})
    assert locate(base, space, Editing()) == {width: 1}
    changed = graphs.apply(base, [(width, 32)])
    assert graphs.evaluate(changed.width) == 32
