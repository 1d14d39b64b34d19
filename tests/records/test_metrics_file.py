from __future__ import annotations

import json
import math
import struct

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

from luthier.errors import RunError
from luthier.records import (
    CutBack,
    DamagedRecord,
    Ended,
    Evaluation,
    Header,
    Histogram,
    Image,
    Notice,
    Sample,
    Saved,
    Step,
    cut_back,
    decode_event,
    encode_event,
    encode_number,
    read_events,
    read_last,
    read_metrics,
    read_records,
)

ALL_KINDS = [
    Header("demo", "runs/demo/1", 0, 10, 123, {"data": 2}, "2 x cpu", 5, 1e9, {"rows": 3}),
    Step(1, {"loss": 2.5, "skipped": 0}),
    Evaluation(1, "held_out", {"nats_per_byte": 1.8}, {"nats_per_byte": "lower"}),
    Saved(1),
    Sample(1, "To be\nor not ✓ \u2028 to be"),
    Sample(1, "ne", "To be, or not to be, that is o", "training/0"),
    Image(1, "data/inputs", path="media/data/inputs/1.png"),
    Histogram(1, "norm.scale", -0.5, 1.25, [3, 0, 5]),
    Notice("W&B: offline"),
    Ended("finished", 1, {"best": 1.5}, "to sample: ..."),
]


def line(event, step=0):
    return json.dumps(encode_event(event, 5.0, step), allow_nan=False) + "\n"


def write(path, *events):
    path.write_text("".join(line(event) for event in events))
    return path


@pytest.mark.parametrize("event", ALL_KINDS, ids=lambda event: type(event).__name__)
def test_events_read_back_as_they_were(tmp_path, event):
    path = write(tmp_path / "m.jsonl", event)
    (recorded,) = read_events(path)
    assert recorded.event == event
    assert recorded.time == 5.0


def bits(number):
    return struct.pack("<d", number)


@hypothesis.given(st.floats())
def test_every_double_reads_back_as_itself(value):
    text = json.dumps(encode_event(Step(1, {"x": value}), 0.0, 0), allow_nan=False)
    read = decode_event(json.loads(text)).event.values["x"]
    assert bits(read) == bits(value) or (math.isnan(read) and math.isnan(value))


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (np.float32(0.1), float(np.float32(0.1))),
        (np.int64(3), 3),
        (True, 1),
        (np.array(2.5), 2.5),
        (math.nan, "NaN"),
        (-math.inf, "-Infinity"),
        (np.float32(math.inf), "Infinity"),
        (10**30, 10**30),
    ],
)
def test_scalars_of_any_sort_become_json_numbers(value, expected):
    encoded = encode_number(value)
    assert encoded == expected
    json.dumps(encoded, allow_nan=False)


@pytest.mark.parametrize("value", ["1.0", None, [1.0], np.ones(3)], ids=repr)
def test_what_is_not_a_number_is_refused(value):
    with pytest.raises(TypeError):
        encode_event(Step(1, {"loss": value}), 0.0, 0)


def test_read_metrics_gives_rows(tmp_path):
    path = write(tmp_path / "m.jsonl", *ALL_KINDS, Step(2, {"loss": math.nan}))
    rows = read_metrics(path)
    assert rows[0] == {"step": 1, "time": 5.0, "loss": 2.5, "skipped": 0}
    assert math.isnan(rows[1]["loss"])
    assert read_metrics(path, "held_out") == [{"step": 1, "time": 5.0, "nats_per_byte": 1.8}]
    assert read_metrics(path, "other") == []
    assert read_metrics(tmp_path / "none.jsonl") == []


def test_a_kind_of_a_later_version_is_passed_over(tmp_path):
    path = tmp_path / "m.jsonl"
    path.write_text('{"kind": "hologram", "step": 1, "time": 1.0}\n' + line(Step(1, {})))
    assert [recorded.event for recorded in read_events(path)] == [Step(1, {})]


def test_a_torn_end_is_left_out_and_damage_is_left_out_and_reported(tmp_path):
    path = write(tmp_path / "m.jsonl", Step(1, {}), Step(2, {}))
    good = path.read_bytes()
    reports = []

    def read():
        reports.clear()
        return len(list(read_records(path, reports.append)))

    path.write_bytes(good + b'{"kind": "step", "step": 3')
    assert (read(), reports) == (2, [])
    path.write_bytes(good + b"\0\0\0\n\0\0\n")
    assert (read(), len(reports)) == (2, 1)
    assert reports[0].endswith("m.jsonl: lines 3 to 4 are damaged; what is whole was read")
    path.write_bytes(b"garbage\n" + good + b'{"kind": "step", "step": 3, "time": 1.0}\n')
    assert (read(), len(reports)) == (3, 1)
    assert reports[0].endswith("m.jsonl: line 1 is damaged; what is whole was read")
    with pytest.warns(DamagedRecord, match="line 1 is damaged, line 4 is damaged"):
        assert [row["step"] for row in read_metrics(path)] == [1, 2]


def test_a_line_with_missing_parts_is_an_error():
    with pytest.raises(RunError, match="step 4 is damaged"):
        decode_event({"kind": "step", "step": 4, "time": 0.0})


def test_the_last_event_of_a_kind(tmp_path):
    path = write(tmp_path / "m.jsonl", Step(1, {}), Step(2, {}), Saved(2))
    with open(path, "a") as file:
        file.write('{"kind": "step", "st')
    assert read_last(path, Step).event == Step(2, {})
    assert read_last(path, Sample) is None
    assert read_last(tmp_path / "none", Step) is None


def test_cut_back_drops_what_came_after(tmp_path):
    steps = [Step(number, {"loss": 1 / number}) for number in range(1, 9)]
    path = write(tmp_path / "m.jsonl", Header("demo"), *steps, Ended("interrupted", 8))
    assert cut_back(path, 5) == CutBack(kept=6, dropped=4, damaged=0)
    assert [row["step"] for row in read_metrics(path)] == [1, 2, 3, 4, 5]
    assert cut_back(path, 5) == CutBack(6, 0, 0)
    assert cut_back(path, -1) == CutBack(0, 6, 0)
    assert path.read_bytes() == b""
    assert cut_back(tmp_path / "none.jsonl", 5) == CutBack(0, 0, 0)


def test_cut_back_finds_later_steps_anywhere(tmp_path):
    path = write(
        tmp_path / "m.jsonl", Evaluation(3, "e", {}), Step(1, {}), Step(3, {}), Step(2, {})
    )
    assert cut_back(path, 2) == CutBack(2, 2, 0)
    assert [row["step"] for row in read_metrics(path)] == [1, 2]


def test_damage_inside_is_dropped_and_the_file_kept(tmp_path):
    path = tmp_path / "m.jsonl"
    whole = line(Step(1, {})) + "#!damage\n" + line(Step(2, {})) + line(Step(3, {}))
    path.write_text(whole)
    assert cut_back(path, 2) == CutBack(kept=2, dropped=2, damaged=1)
    assert [row["step"] for row in read_metrics(path)] == [1, 2]
    assert (tmp_path / "m.jsonl.damaged").read_text() == whole
    again = "#!other damage\n" + path.read_text()
    path.write_text(again)
    cut_back(path, 2)
    assert (tmp_path / "m.jsonl.damaged").read_text() == whole
    assert (tmp_path / "m.jsonl.damaged-2").read_text() == again


@st.composite
def torn_files(draw):
    """A file as a killed writer leaves it, perhaps with garbage at its end; and its whole lines."""
    steps = draw(st.integers(0, 12))
    lines = []
    for step in range(1, steps + 1):
        lines.append((step, line(Step(step, {"loss": draw(st.floats())})).encode()))
        if draw(st.booleans()):
            lines.append((step, line(Evaluation(step, "e", {"x": 1.0})).encode()))
    data = b"".join(content for _, content in lines)
    cut = draw(st.integers(0, len(data)))
    tail = draw(st.one_of(st.just(b""), st.binary(max_size=40)))
    return lines, data[:cut] + tail


@hypothesis.given(torn_files(), st.integers(-1, 13))
@hypothesis.settings(suppress_health_check=[hypothesis.HealthCheck.function_scoped_fixture])
def test_cut_back_of_any_torn_file_keeps_each_whole_line_once(tmp_path, torn, step):
    lines, data = torn
    path = tmp_path / "torn.jsonl"
    path.write_bytes(data)
    cut_back(path, step)
    expected, whole = b"", b""
    for number, content in lines:
        whole += content
        if data.startswith(whole) and number <= step:
            expected += content
    kept = path.read_bytes()
    path.with_name("torn.jsonl.damaged").unlink(missing_ok=True)
    assert kept == expected
    list(read_events(path))


@hypothesis.given(st.binary(max_size=200), st.integers(-1, 3))
@hypothesis.settings(suppress_health_check=[hypothesis.HealthCheck.function_scoped_fixture])
def test_cut_back_leaves_a_readable_file_whatever_it_was(tmp_path, data, step):
    path = tmp_path / "any.jsonl"
    path.write_bytes(data)
    cut_back(path, step)
    path.with_name("any.jsonl.damaged").unlink(missing_ok=True)
    assert all(record["step"] <= step for record in read_records(path))


def test_a_file_that_cannot_be_cut_is_one_line(tmp_path):
    with pytest.raises(RunError, match="cannot cut back"):
        cut_back(tmp_path, 3)


def test_the_last_step_is_found_behind_a_long_end_of_other_kinds(tmp_path):
    histograms = [Histogram(2, f"p{i}", 0.0, 1.0, [i] * 64) for i in range(50)]
    path = write(tmp_path / "m.jsonl", Step(1, {"loss": 1.0}), Step(2, {"loss": 0.5}), *histograms)
    assert read_last(path, Step, window_bytes=256).event == Step(2, {"loss": 0.5})
    assert read_last(path, Saved, window_bytes=256) is None


def test_the_pixels_of_an_image_are_not_in_its_line():
    record = encode_event(Image(3, "x", [[[1]]], "media/x/3.png"), 0.0, 0)
    assert record == {"kind": "image", "step": 3, "time": 0.0, "name": "x", "path": "media/x/3.png"}


def test_the_edges_of_a_histogram():
    histogram = Histogram(1, "x", -1.0, 2.0, [1, 2, 3])
    assert histogram.edges == [-1.0, 0.0, 1.0, 2.0]
