from __future__ import annotations

import json

import pytest
from graph_toys import parts

from luthier.errors import RecordError
from luthier.graph import to_json
from luthier.graph.record import read_record


def test_the_json_of_a_record():
    assert read_record(to_json(parts.experiment()), "x")["config"] == "graph_toys.parts.Experiment"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "x is not readable as JSON: Expecting property name enclosed in double quotes in "),
        ("[]", "x is not a recorded graph; give the config.json of a run"),
        ('{"a": 1, "a": 2}', "x is not readable as JSON: 'a' is given twice"),
        ("NaN", 'x is not readable as JSON: NaN is not JSON; write {"float": "nan"}'),
        ("[" * 100_000, "x is not readable as JSON: it is nested too deeply"),
        ("1" * 5000, "x is not readable as JSON: Exceeds the limit"),
        (
            json.dumps({"format": "luthier.graph", "version": 99, "graph": None}),
            "x has format version 99; this luthier reads up to 1; read it with the luthier that "
            "wrote it, or newer",
        ),
    ],
)
def test_what_is_no_record(text, message):
    with pytest.raises(RecordError) as raised:
        read_record(text, "x")
    assert str(raised.value).startswith(message)
    assert len(raised.value.problems) == 1
