"""Records of a small experiment in all the places where one may be."""

from __future__ import annotations

import json
import sys

import pytest

from luthier import graph as graphs


@pytest.fixture
def tiny(importable_project):
    """The graph of `trials.tiny`, in a project that is the working directory."""
    graph = graphs.resolve("trials.tiny")
    yield graph
    for name in [name for name in sys.modules if name.partition(".")[0] == "trials"]:
        del sys.modules[name]


@pytest.fixture
def study(tiny, tmp_path):
    """The folder of a study with three trials, of which two have ended."""
    folder = tmp_path / "studies" / "rates"
    lines = []
    for number, (words, outcome, value) in enumerate(
        [([], "complete", 2.0), (["optimizer.b2=0.9"], "complete", 1.5), (["seed=3"], "", None)]
    ):
        trial = folder / "trials" / f"{number:04d}"
        trial.mkdir(parents=True)
        graph = graphs.apply(tiny, words)
        (trial / "config.json").write_text(graphs.to_json(graph))
        (trial / "config.history.json").write_text(json.dumps(graphs.history_record(graph)))
        (trial / "assignment.json").write_text(json.dumps({"trial": number, "words": words}))
        asked = {"kind": "asked", "setting": number, "trials": [number], "words": words}
        lines.append({**asked, "assignment": {}})
        lines.append({"kind": "admitted", "trial": number})
        lines.append({"kind": "leased", "trial": number, "slice": 0, "fence": 1})
        if outcome:
            ended = {"kind": "ended", "trial": number, "outcome": outcome}
            lines.append({**ended, "reason": "", "values": [value], "device_seconds": 1.0})
    facts = {"metrics": ["held_out/loss"], "directions": ["lower"]}
    (folder / "facts.json").write_text(json.dumps(facts))
    (folder / "study.json").write_text("{}")
    (folder / "journal.jsonl").write_text(
        "".join(f"{json.dumps({'at': 1.0, **one})}\n" for one in lines)
    )
    return folder
