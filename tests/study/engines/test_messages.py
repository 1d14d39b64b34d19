import io
import math

import pytest

from luthier.study import Lost, Reported, SliceInfo, TrialEnded, TrialWork, Work
from luthier.study.engines import (
    Answer,
    Close,
    MessageWriter,
    Refill,
    Stop,
    decode,
    encode,
    read_messages,
)

TRIAL = TrialWork(7, 3, "trials/0007")
MESSAGES = [
    SliceInfo(0, "left", 2, "cpu", 1024),
    Work((TRIAL,), hoist=("seed",), lanes="vmap", asks=True, spare_lanes=3),
    Refill(TRIAL),
    Answer(7, 3, False),
    Stop(7, 3),
    Close(),
    Reported(0, 7, 3, 10, {"held_out/loss": 1.5}),
    TrialEnded(0, 7, 3, "failed", "why", {"metrics": {}, "steps": 4}),
    Lost(1, "it is gone"),
]


@pytest.mark.parametrize("message", MESSAGES, ids=lambda m: type(m).__name__)
def test_a_message_survives_the_pipe(message):
    line = encode(message)
    assert line.count(b"\n") == 1
    assert decode(line) == message


def test_numbers_that_are_none_survive_too():
    found = decode(encode(Reported(0, 1, 1, 1, {"a": math.nan, "b": math.inf})))
    assert math.isnan(found.metrics["a"])
    assert found.metrics["b"] == math.inf


@pytest.mark.parametrize("line", [b"{}", b"[1]", b'{"kind": "x"}', b'{"kind": "stop"}', b"no\n"])
def test_lines_that_are_not_messages_are_rejected(line):
    with pytest.raises(ValueError):
        decode(line)


def test_a_torn_line_at_the_end_is_left_out():
    stream = io.BytesIO()
    writer = MessageWriter(stream)
    writer.send(Stop(1, 2))
    writer.send(Stop(3, 4))
    text = stream.getvalue()
    assert list(read_messages(io.BytesIO(text[:-4]))) == [Stop(1, 2)]
    writer.close()
    with pytest.raises(ValueError):
        writer.send(Close())
