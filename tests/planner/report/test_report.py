import json

import pytest

from luthier.planner import Report


def report(**fields):
    """Return a small report."""
    made = {
        "experiment": "x",
        "slice": "v5e-16",
        "level": "compile",
        "devices": {"count": 16, "kind": "TPU v5 lite", "slices": 1},
        "mesh": {"fsdp": 16},
        "parameters": {"total": 10, "active": 10, "trained": 10},
        "rows": {"per_step": 16, "per_device": 1, "accumulation": 1},
        "tokens_per_step": 128,
        "steps": 5,
        "bytes_per_device": {"parameters": 40},
    }
    return Report.of_fields(made | fields)


@pytest.mark.parametrize(
    ("fields", "fits"),
    [
        ({"needed_bytes": 10, "limit_bytes": 10}, True),
        ({"needed_bytes": 11, "limit_bytes": 10}, False),
        ({"needed_bytes": 11}, None),
        ({"refusal": "Used 2G of 1G hbm"}, False),
    ],
)
def test_whether_it_fits(fields, fits):
    assert report(**fields).fits is fits


def test_a_report_travels_as_json():
    one = report(notes=["a"], flops={"full": 2})
    there = json.loads(json.dumps(one.to_dict()))
    again = Report.from_dict(there)
    assert again.to_dict() == there
    assert again.subject == one.subject
