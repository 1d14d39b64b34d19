from __future__ import annotations

import contextlib
import dataclasses
import json

import pytest

from luthier.checkpoint import commit as commit_lib
from luthier.checkpoint.commit import Commit
from luthier.errors import CheckpointError, VersionError

COMMIT = Commit(
    step=7,
    arrays={"parameters/a.b": ((2, 3), "float32"), "step": ((), "int32")},
    extra={"best": float("inf"), "nested": {"list": [1, None, "x"]}},
    metrics={"held_out/loss": 1.5},
    versions={"jax": "1"},
    has_iterator=True,
)


@pytest.fixture
def checkpoint(tmp_path):
    directory = tmp_path / "7"
    (directory / "d").mkdir(parents=True)
    (directory / "d" / "data").write_bytes(bytes(range(256)) * 100)
    (directory / "empty").touch()
    return directory


def test_what_is_written_is_read(checkpoint):
    written = commit_lib.write(checkpoint, COMMIT)
    assert commit_lib.read(checkpoint) == written
    assert dataclasses.replace(written, files={}) == COMMIT
    assert set(written.files) == {"d/data", "empty"}
    assert commit_lib.check(checkpoint, written) == []


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda path: path.unlink(), "d/data is missing"),
        (lambda path: path.write_bytes(b"x"), "d/data has 1 bytes, not 25600"),
        (lambda path: path.write_bytes(bytes(25600)), "d/data differs"),
    ],
)
def test_damage_is_named(checkpoint, damage, message):
    commit = commit_lib.write(checkpoint, COMMIT)
    damage(checkpoint / "d" / "data")
    (found,) = commit_lib.check(checkpoint, commit)
    assert message in found


def test_every_flipped_bit_of_the_commit_file_is_found(checkpoint):
    commit_lib.write(checkpoint, COMMIT)
    file = checkpoint / commit_lib.FILE
    content = file.read_bytes()
    whole = commit_lib.read(checkpoint)
    for position in range(0, len(content), 7):
        damaged = bytearray(content)
        damaged[position] ^= 1 << (position % 8)
        file.write_bytes(damaged)
        # White space may change without changing anything.
        with contextlib.suppress(CheckpointError):
            assert commit_lib.read(checkpoint) == whole


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"checksum": 0}', "null", "\x00"])
def test_nonsense_is_a_clear_error(checkpoint, text):
    (checkpoint / commit_lib.FILE).write_text(text)
    with pytest.raises(CheckpointError, match=r"commit\.json cannot be read"):
        commit_lib.read(checkpoint)


def test_a_later_format_asks_for_an_update(checkpoint):
    commit_lib.write(checkpoint, COMMIT)
    content = json.loads((checkpoint / commit_lib.FILE).read_text())
    del content["checksum"]
    content["format"] = 99
    content["checksum"] = commit_lib._text_checksum(content)
    (checkpoint / commit_lib.FILE).write_text(json.dumps(content))
    with pytest.raises(VersionError, match="another version"):
        commit_lib.read(checkpoint)
