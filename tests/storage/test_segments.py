import contextlib

import pytest

from luthier.errors import RunError
from luthier.records.object_storage import Bucket, Segment, Segments

NAME = "metrics.jsonl"
FOLDER = "metrics.jsonl.segments/"


@pytest.fixture
def bucket(tmp_path):
    return Bucket(f"file://{tmp_path}/bucket")


@pytest.fixture(autouse=True)
def small(monkeypatch):
    monkeypatch.setattr("luthier.storage.segments.SEGMENT_BYTES", 10)


@pytest.fixture
def grow(tmp_path, bucket):
    """Return what makes a file longer and pushes it; it returns the pieces' ends and the bytes."""
    path, pieces = tmp_path / NAME, Segments(bucket, NAME)
    path.touch()

    def grow(data=b"", of=pieces):
        with path.open("ab") as file:
            file.write(data)
        of.push(path)
        parsed = [Segment.parse(name.removeprefix(FOLDER)) for name in bucket.list(FOLDER)]
        assert b"".join(Segments(bucket, NAME).read()) == path.read_bytes()
        return [(one.start, one.end) for one in parsed]

    grow.path = path
    return grow


def test_the_last_piece_grows_until_it_has_its_size(grow):
    assert grow() == []
    assert grow(b"1234") == [(0, 4)]
    assert grow() == [(0, 4)]
    assert grow(b"567890AB") == [(0, 12)]
    assert grow(b"CD") == [(0, 12), (12, 14)]
    assert grow(b"EF") == [(0, 12), (12, 16)]
    assert grow(b"G" * 20) == [(0, 12), (12, 36)]
    assert grow(b"H") == [(0, 12), (12, 36), (36, 37)]


def test_another_process_goes_on_with_the_pieces_that_still_hold(grow, bucket):
    for data in (b"A" * 12, b"B" * 12, b"C" * 4):
        grow(data)
    before = list(bucket.list(FOLDER))
    grow.path.write_bytes(b"A" * 12 + b"B" * 6)  # cut back to a step, and gone on from there
    assert grow(b"D" * 3, of=Segments(bucket, NAME)) == [(0, 12), (12, 21)]
    assert bucket.list(FOLDER)[0] == before[0], "what still holds was not written again"


def test_a_process_that_was_killed_between_two_pieces_leaves_no_gap(grow, bucket):
    grow(b"1234")
    longer = Segment.of(0, b"123456")
    bucket.write(f"{FOLDER}{longer}", b"123456")
    assert b"".join(Segments(bucket, NAME).read()) == b"123456"
    bucket.write(f"{FOLDER}stranger", b"")
    grow.path.write_bytes(b"123456")
    assert b"".join(Segments(bucket, NAME).read()) == b"123456"


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda bucket, names: bucket.write(names[1], b"B" * 11), "does not hold what was written"),
        (lambda bucket, names: bucket.write(names[1], b"C" * 12), "does not hold what was written"),
        (lambda bucket, names: bucket.delete(names[1]), "bytes 12 to 24 are missing"),
    ],
    ids=["truncated", "replaced", "missing"],
)
def test_a_piece_that_is_not_what_was_written_ends_the_copy(grow, bucket, damage, message):
    for data in (b"A" * 12, b"B" * 12, b"C" * 4):
        grow(data)
    damage(bucket, bucket.list(FOLDER))
    with pytest.raises(RunError, match=message) as refusal:
        list(Segments(bucket, NAME).read())
    assert FOLDER in str(refusal.value)
    assert "nothing was copied" in str(refusal.value)


def test_a_kill_while_a_file_that_was_cut_back_is_pushed_costs_none_of_its_beginning(
    grow, bucket, monkeypatch
):
    for data in (b"0123456789", b"abcdefghij", b"klm"):
        grow(data)
    before = grow.path.read_bytes()
    kept = before[:15]
    changes = [0]

    def counted(change):
        def do(*given):
            if not changes[0]:
                raise KeyboardInterrupt
            changes[0] -= 1
            return change(*given)

        return do

    monkeypatch.setattr(bucket, "write", counted(bucket.write))
    monkeypatch.setattr(bucket, "delete", counted(bucket.delete))
    for number in range(10):
        changes[0] = 100
        Segments(bucket, NAME).push(_written(grow.path, before))
        changes[0] = number
        with contextlib.suppress(KeyboardInterrupt):
            Segments(bucket, NAME).push(_written(grow.path, kept + b"XYZ"))
        left = b"".join(Segments(bucket, NAME).read())
        assert left.startswith(kept)
    assert left == kept + b"XYZ"


def _written(path, data):
    path.write_bytes(data)
    return path
