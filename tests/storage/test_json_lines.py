"""Lines whose bytes changed are left out and reported; those around them are read."""

import json

import pytest

from luthier.storage import LineReader, LineWriter


@pytest.mark.parametrize("place", [1, 2, 3])
def test_a_flipped_digit_is_found_although_the_line_is_still_json(tmp_path, place):
    path = tmp_path / "lines.jsonl"
    writer = LineWriter(path)
    for value in (111, 222, 333):
        writer.add(json.dumps({"value": value}))
    writer.commit()
    writer.close()
    assert [row["value"] for row in LineReader(path)] == [111, 222, 333]

    value = 111 * place
    text = path.read_bytes()
    assert text.count(str(value).encode()) == 1
    path.write_bytes(text.replace(str(value).encode(), str(value + 1).encode()))
    reader = LineReader(path)
    assert [row["value"] for row in reader] == [v for v in (111, 222, 333) if v != value]
    assert [(damage.place, damage.what) for damage in reader.damage] == [(place, "damaged")]
    assert str(path) in reader.report
