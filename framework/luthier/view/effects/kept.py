"""What was worked out before, kept in the user's cache folder by fingerprint."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
import pathlib
from collections.abc import Sequence
from typing import Any

import jax

from luthier import graph as graphs
from luthier.records.source import hash_package
from luthier.storage import replacing
from luthier.view.effects.facts import Facts, facts_of

_FORMAT = 2


def folder() -> pathlib.Path:
    """Return where effects are kept; it may not exist yet."""
    root = os.environ.get("XDG_CACHE_HOME", "")
    cache = pathlib.Path(root) if os.path.isabs(root) else pathlib.Path.home() / ".cache"
    return cache / "luthier" / "effects"


def known_facts(graph: Any, devices: Sequence[jax.Device], packages: Sequence[str] = ()) -> Facts:
    """Return what follows from an experiment, from the cache where it is there.

    Args:
      graph: An experiment graph.
      devices: What it would run on.
      packages: The user's packages, whose code the facts follow from as well.

    Raises:
      BadInput: It is not an experiment, or cannot run on these devices.
    """
    path = folder() / f"{_key(graph, devices, packages)}.json"
    with contextlib.suppress(OSError, ValueError, TypeError):
        return Facts(**json.loads(path.read_text(encoding="utf-8")))
    facts = facts_of(graph, devices)
    with contextlib.suppress(OSError):  # a cache that cannot be written is no error
        _write(path, json.dumps(dataclasses.asdict(facts)))
    return facts


def _key(graph: Any, devices: Sequence[jax.Device], packages: Sequence[str]) -> str:
    """Return what is equal where the same follows: graph, devices and code."""
    code = [hash_package(name) for name in ("luthier", *packages)]
    hardware = [len(devices), devices[0].device_kind]
    content = [_FORMAT, graphs.fingerprint(graph), hardware, jax.__version__, code]
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()[:32]


def _write(path: pathlib.Path, text: str) -> None:
    """Write a file at once, or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as file:
        file.write(text.encode())
