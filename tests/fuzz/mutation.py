"""Broken inputs from whole ones: bytes, words and JSON values are cut, doubled, crossed."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from typing import Any

WORDS = (
    b"fuzz_canary", b"fuzz_canary.boom", b"fuzz_canary:boom", b"os.system", b"antigravity",
    b"xmlrpc.server", b"turtle.mainloop", b"subprocess.Popen", b"builtins.eval", b"numpy.load",
    b"jax._src.xla_bridge.os.system", b"luthier.cli.main.main", b"__import__", b"__class__",
    b"lambda: 0", b"null", b"true", b"NaN", b"-Infinity", b"1e999", b"-1", b"0", b"9" * 30,
    b"9" * 5000, b"\x00", b"\xff\xfe", b"\xed\xa0\x80", b"\\ud800", "é東\u2028".encode(), b"\r\n",
    b"[" * 2000, b"{\"a\":" * 500, b"((((", b"%", b"${", b"@", b"$", b"*", b"**", b"//", b"..",
    b"/etc/passwd", b"../../x", b"~", b"'", b'"', b"\\", b"=", b":=", b"+=", b"#", b"&a", b"*a",
    b"!!python/object/apply:os.system", b"!fuzz_canary", b"<<:", b"? ", b"---\n", b"include ",
    b"import fuzz_canary\n", b"from fuzz_canary import boom\n", b"1/0", b"9**9**9", b"\t", b"\x1b[",
)  # fmt: skip

VALUES: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 2**31, 2**63, -(2**63), 10**40, 0.5, -0.0, 1e308, float("nan"),
    float("inf"), "", "a", "NaN", "\x00", "\ud800", "fuzz_canary.boom", "os.system", "../../x", "/",
    "x" * 1000, [], {}, [[]], [None], {"": ""}, {"kind": None}, [1, "a", {}], [[[[[[1]]]]]],
)  # fmt: skip


def mutate(draw: random.Random, corpus: Sequence[bytes]) -> bytes:
    """Return an input made of those of a corpus, by up to four changes.

    Args:
      draw: Random numbers, which decide everything.
      corpus: Inputs to start from.
    """
    data = draw.choice(corpus)
    for _ in range(draw.choice((1, 1, 1, 2, 2, 3, 4))):
        change = draw.choice((_structure, _structure, _bytes, _words, _lines, _cross))
        data = change(draw, data, corpus)
    return data[: 1 << 16]


def _span(draw: random.Random, data: bytes) -> tuple[int, int]:
    start = draw.randint(0, len(data))
    longest = draw.choice((1, 4, 16, 256))
    return start, min(len(data), start + draw.randint(0, longest))


def _bytes(draw: random.Random, data: bytes, corpus: Sequence[bytes]) -> bytes:
    """Flip, cut, double or insert a few bytes."""
    start, end = _span(draw, data)
    middle = data[start:end]
    kind = draw.randrange(4)
    if kind == 0:
        middle = bytes(byte ^ (1 << draw.randrange(8)) for byte in middle)
    elif kind == 1:
        middle = b""
    elif kind == 2:
        middle *= draw.choice((2, 2, 3, 50))
    else:
        middle += draw.randbytes(draw.randint(1, 8))
    return data[:start] + middle + data[end:]


def _words(draw: random.Random, data: bytes, corpus: Sequence[bytes]) -> bytes:
    """Put a word with a meaning somewhere."""
    start, end = _span(draw, data)
    return data[:start] + draw.choice(WORDS) + data[draw.choice((start, end)) :]


def _lines(draw: random.Random, data: bytes, corpus: Sequence[bytes]) -> bytes:
    """Drop, double or swap lines, or cut the end off."""
    lines = data.split(b"\n")
    at, other = draw.randrange(len(lines)), draw.randrange(len(lines))
    kind = draw.randrange(4)
    if kind == 0:
        del lines[at]
    elif kind == 1:
        lines.insert(other, lines[at])
    elif kind == 2:
        lines[at], lines[other] = lines[other], lines[at]
    else:
        return data[: draw.randint(0, len(data))]
    return b"\n".join(lines)


def _cross(draw: random.Random, data: bytes, corpus: Sequence[bytes]) -> bytes:
    """Replace a part by a part of another input."""
    other = draw.choice(corpus)
    start, end = _span(draw, data)
    first, last = _span(draw, other)
    return data[:start] + other[first:last] + data[end:]


def _structure(draw: random.Random, data: bytes, corpus: Sequence[bytes]) -> bytes:
    """Change one value of a JSON text, or of one of its lines; other texts get a word."""
    lines = data.split(b"\n")
    at = draw.randrange(len(lines))
    for text, wrap in ((data, lambda new: new), (lines[at], lambda new: _with(lines, at, new))):
        try:
            value = json.loads(text)
        except (ValueError, RecursionError):
            continue
        if isinstance(value, dict | list):
            return wrap(json.dumps(_changed(draw, value)).encode())
    return _words(draw, data, corpus)


def _with(lines: list[bytes], at: int, new: bytes) -> bytes:
    return b"\n".join([*lines[:at], new, *lines[at + 1 :]])


def _changed(draw: random.Random, value: Any) -> Any:
    """Return a copy of a JSON value with one entry replaced, dropped, renamed or moved."""
    places: list[tuple[Any, Any]] = []

    def collect(inside: Any) -> None:
        entries = inside.items() if isinstance(inside, dict) else enumerate(inside)
        for key, entry in list(entries):
            places.append((inside, key))
            if isinstance(entry, dict | list):
                collect(entry)

    collect(value)
    if not places:
        return draw.choice(VALUES)
    inside, key = draw.choice(places)
    kind = draw.randrange(5)
    if kind < 2:
        inside[key] = draw.choice(VALUES)
    elif kind == 2:
        del inside[key]
    elif kind == 3 and isinstance(inside, dict):
        inside[draw.choice(("", "kind", "step", "fuzz_canary", f"{key} "))] = inside.pop(key)
    else:
        other, place = draw.choice(places)
        inside[key] = json.loads(json.dumps(other[place])) if place in _keys(other) else None
    return value


def _keys(inside: Any) -> Any:
    return inside if isinstance(inside, dict) else range(len(inside))
