import json
import os
import resource

import pytest

from luthier.data import JsonLines, JsonRecords
from luthier.data.sources import blocks
from luthier.errors import DataError


def test_records_in_order_with_their_positions(tmp_path):
    (tmp_path / "b.jsonl").write_text('{"text": "three"}')
    (tmp_path / "a.jsonl").write_bytes(
        '\ufeff{"text": "one é"}\n\n  \r\n{"text": "two", "n": 1}\r\n'.encode()
    )
    source = JsonLines(f"{tmp_path}/*.jsonl")
    assert list(source) == ["one é".encode(), b"two", b"three"]
    assert [source.name(i) for i in range(3)] == [
        f"{tmp_path}/a.jsonl:1",
        f"{tmp_path}/a.jsonl:4",
        f"{tmp_path}/b.jsonl:1",
    ]
    assert source.read(1, 3) == [b"two", b"three"]


def test_many_records(tmp_path):
    texts = [f"text {i} " * (i % 5) for i in range(3000)]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"body": t}) + "\n" for t in texts))
    source = JsonLines(f"{tmp_path}/a.jsonl", field="body")
    assert [d.decode() for _, block in blocks(source) for d in block] == texts


BAD = [
    ('{"text": "x"', "not JSON: Expecting ',' delimiter at column 13"),
    ("[1]", "not a JSON object but a list"),
    ("null", "not a JSON object but null"),
    ('{"txet": "x", "n": 2}', "no field 'text' (its fields: 'txet', 'n')"),
    ("{}", "no field 'text' (its fields: none)"),
    ('{"text": 3}', "field 'text' is not text but a number"),
    ('{"text": true}', "field 'text' is not text but a truth value"),
    ('{"text": null}', "field 'text' is not text but null"),
    ('{"text": {"a": 1}}', "field 'text' is not text but an object"),
    ('{"text": "\\ud800"}', "field 'text' holds half a surrogate pair"),
    ('{"text": "\udcff"}', "not UTF-8 at byte 11"),
    ("[" * 100_000, "not JSON that can be read"),
    ('{"text": ' + "9" * 5000 + "}", "not JSON that can be read"),
]


@pytest.mark.parametrize(("line", "message"), BAD)
def test_bad_lines_are_named_by_position(tmp_path, line, message):
    good = '{"text": "fine"}\n'
    content = good + "\n" + line + "\n" + good
    (tmp_path / "a.jsonl").write_bytes(content.encode("utf-8", "surrogateescape"))
    with pytest.raises(DataError) as error:
        list(blocks(JsonLines(f"{tmp_path}/a.jsonl")))
    (problem,) = error.value.problems
    assert f"a.jsonl:3: {message}" in str(problem)
    assert problem.remedy
    assert "\n" not in str(problem)


def test_all_bad_lines_at_once_with_the_nearest_field(tmp_path):
    lines = ['{"text": "x"}', '{"texts": "x"}', "{", '{"text": "x"}', "3"]
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    with pytest.raises(DataError) as error:
        list(blocks(JsonLines(f"{tmp_path}/a.jsonl")))
    assert [str(p).split(": ")[0][-1] for p in error.value.problems] == ["2", "3", "5"]
    assert error.value.problems[0].nearest == ("texts",)


def test_every_unusable_file_is_named(tmp_path):
    (tmp_path / "a.jsonl").write_text("\n\n")
    (tmp_path / "b.jsonl").symlink_to(tmp_path / "gone")
    (tmp_path / "c.jsonl").write_text('{"text": "x"}')
    with pytest.raises(DataError) as error:
        len(JsonLines(f"{tmp_path}/*.jsonl"))
    first, second = error.value.problems
    assert "a.jsonl: the file is empty" in str(first)
    assert "b.jsonl: cannot be read" in str(second)


def test_a_file_that_goes_away_is_named(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "x"}\n')
    source = JsonLines(str(path))
    assert len(source) == 1
    path.unlink()
    with pytest.raises(DataError, match=r"a.jsonl: cannot be read"):
        source[0]


def test_records_have_all_fields(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"a": 1, "b": "x"}\n\n{"a": [2]}\n[]\n')
    records = JsonRecords(f"{tmp_path}/*.jsonl")
    assert len(records) == 3
    assert records[0] == {"a": 1, "b": "x"}
    assert records[1] == {"a": [2]}
    assert records.name(1).endswith("a.jsonl:3")
    with pytest.raises(DataError, match=r"a\.jsonl:4: not a JSON object"):
        records[2]


def test_a_block_may_span_more_files_than_may_be_open(tmp_path):
    for number in range(50):
        (tmp_path / f"{number:02}.jsonl").write_text(f'{{"text": "{number}"}}\n')
    source = JsonLines(str(tmp_path / "*.jsonl"))
    assert len(source) == 50
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = max(int(name) for name in os.listdir("/proc/self/fd"))
    resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 10, hard))
    try:
        assert len(source.read(0, 50)) == 50
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
