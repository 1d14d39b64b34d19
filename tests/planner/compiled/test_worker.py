import io
import json

from luthier import graph as graphs
from luthier.planner import worker


def answers(slice, *overrides):
    base = graphs.resolve("configs.lm.quickstart")
    graph = graphs.apply(base, list(overrides), origin="a test")
    asked = {
        "graph": graphs.to_json(graph),
        "history": graphs.history_record(graph),
        "slice": slice,
        "level": "shapes",
        "packages": [],
        "search": False,
    }
    written = io.StringIO()
    worker.serve(json.dumps(asked), written)
    return [json.loads(line) for line in written.getvalue().splitlines()]


def test_the_last_line_is_the_report():
    *phases, last = answers("v5e-8")
    assert [line["phase"] for line in phases] == ["shapes", "trace the loss", "estimate"]
    assert last["report"]["subject"]["slice"] == "v5e-8"
    assert last["report"]["fits"] is True


def test_problems_keep_their_parts():
    (_, last) = answers("v5e-8", "model.vocab_size=100")
    assert last["problems"] == [
        {
            "what": "100 is smaller than the tokenizer's 258 tokens",
            "path": "model.vocab_size",
            "origin": "a test 1: model.vocab_size=100",
            "remedy": "set model.vocab_size=258",
            "nearest": [],
        }
    ]
    (last,) = answers("v5x-8")
    assert last["problems"][0]["nearest"]
