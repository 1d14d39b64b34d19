"""Lines whose bytes changed are left out and reported; those around them are read."""

import errno
import json
import os
import zlib

import pytest

from luthier.errors import RunError, VersionError
from luthier.storage import (
    Damage,
    LineFollower,
    LineReader,
    LineWriter,
    looks_whole,
    parse,
    require_known_format,
    seal,
)


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


def whole(*numbers):
    return [seal(b'{"value":%d}' % number, number) for number in numbers]


def test_a_checksum_that_is_not_hexadecimal_is_damage(tmp_path):
    path = tmp_path / "lines.jsonl"
    first, second = whole(0, 1)
    path.write_bytes(first[:-11] + b"wxyzwxyz" + first[-3:] + second)
    reader = LineReader(path)
    assert list(reader) == [{"value": 1}]
    assert reader.damage == [Damage(1, "damaged")]
    assert not looks_whole(path)


@pytest.mark.parametrize("number", [b"true", b"-1", b'"0"', b"1.0", b"null"])
def test_a_line_whose_number_counts_nothing_is_damage(number):
    body = b'{"value":1,"n":%s' % number
    assert parse(b'%s,"crc":"%08x"}\n' % (body, zlib.crc32(body))) is None


@pytest.mark.parametrize("line", [b'{"value":1}', b'{"value":1}}\n', b"[1]\n", b'{"n":1}\n'])
def test_what_is_not_a_line_of_any_version_is_damage(line):
    assert parse(line) is None
    assert parse(b'{"value":1}\n').number is None  # of an early version


def test_of_a_line_that_stands_twice_the_first_counts(tmp_path):
    path = tmp_path / "lines.jsonl"
    path.write_bytes(b"".join(whole(0, 1, 0, 1, 2, 5)))
    reader = LineReader(path)
    assert [row["value"] for row in reader] == [0, 1, 2, 5]
    assert reader.report == (
        f"{path}: lines 3 to 4 are repeated, 2 lines are missing before line 6; what is whole "
        "was read"
    )
    assert not looks_whole(path)


def test_a_line_that_is_being_written_is_nothing_wrong(tmp_path):
    path = tmp_path / "lines.jsonl"
    first, second = whole(0, 1)
    path.write_bytes(first + second[:20])
    assert looks_whole(path)
    reader = LineReader(path)
    assert [row["value"] for row in reader] == [0]
    assert (reader.report, reader.torn_bytes) == ("", 20)


def test_what_cannot_be_read_is_one_line(tmp_path):
    """A folder stands in the place of the file."""
    for read in (
        lambda: list(LineReader(tmp_path)),
        lambda: list(LineFollower(tmp_path)),
        lambda: require_known_format(tmp_path),
        lambda: LineWriter(tmp_path),
    ):
        with pytest.raises(RunError, match=r"^cannot (read|write) .*: Is a directory"):
            read()
    assert looks_whole(tmp_path)  # whoever reads it is the one to report it


@pytest.mark.skipif(not os.path.exists("/proc/self/mem"), reason="the system has no /proc")
def test_a_disk_that_fails_while_a_file_is_read_is_one_line():
    with pytest.raises(RunError, match="cannot read /proc/self/mem: Input/output error"):
        list(LineReader("/proc/self/mem"))  # its first page is never mapped


def test_a_torn_line_that_cannot_be_cut_off_is_one_line_and_stays(tmp_path, monkeypatch):
    path = tmp_path / "lines.jsonl"
    (first,) = whole(0)
    path.write_bytes(first + b"torn")
    opened = len(os.listdir("/dev/fd"))

    def refuse(descriptor, size):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    with monkeypatch.context() as patched:
        patched.setattr(os, "ftruncate", refuse)
        with pytest.raises(RunError, match=r"cannot write .*: Read-only file system"):
            LineWriter(path)
    assert path.read_bytes() == first + b"torn"
    assert len(os.listdir("/dev/fd")) == opened
    writer = LineWriter(path)
    assert (writer.mended, path.read_bytes()) == (4, first)
    writer.close()


def test_a_later_format_is_refused_wherever_its_first_line_is(tmp_path):
    path = tmp_path / "lines.jsonl"
    later = seal(b'{"value":2}', 1, 3)
    path.write_bytes(whole(0)[0] + later)
    with pytest.raises(VersionError):
        require_known_format(path)
    with pytest.raises(VersionError):
        list(LineReader(path))
    require_known_format(tmp_path / "none.jsonl")
