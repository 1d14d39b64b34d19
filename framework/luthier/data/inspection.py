"""Inspection of a data node: its batches as text, lengths, shares, and the time of each stage."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import numpy as np

from luthier.data.mixture import Mixture
from luthier.data.node import DataNode
from luthier.data.packed import Packed, TokenNode
from luthier.data.sources.source import blocks
from luthier.data.tokenizers.tokenizer import Tokenizer

SHARE_ROWS = 10_000
TEXT = 160
_PICTURE = 64
_SEGMENTS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"


def inspect(
    node: DataNode, *, seed: int, global_batch_size: int, num_batches: int = 1, steps: int = 0
) -> dict[str, Any]:
    """Look at the first batches of training and at where their time goes.

    Args:
      node: The data node.
      seed: Seed of the order of rows.
      global_batch_size: The rows of a batch.
      num_batches: Number of batches to show.
      steps: Steps of the whole run, for how often each row is seen; 0 leaves that out.

    Returns:
      `seconds` by stage, `describe` of the node, `spec` of a batch, `batches` (for each row its
      text where there is a tokenizer, and a picture of its segments), `lengths` (a histogram, where
      documents have lengths) and `mixture` (the shares), all JSON-able.

    Raises:
      DataError: when the data cannot be read or is too small.
    """
    from luthier.data import loader  # noqa: F401  (Grain takes a second to import)

    # Stages are lazy properties that cache their result: the time of the first access is that of
    # the stage, and the order of accesses decides which stage a shared cost is charged to. Hence
    # Grain is imported before, and the stages are touched one after another before the first batch.
    seconds = dict(_timed_stages(node))
    start = time.perf_counter()
    iterator = node.iterator(global_batch_size=global_batch_size, seed=seed)
    # At least one batch, for the seconds that the first step of a run waits.
    batches = [next(iterator) for _ in range(max(num_batches, 1))]
    seconds["first batches"] = time.perf_counter() - start
    rows, _ = node.order(seed=seed, global_batch_size=global_batch_size)(
        np.arange(global_batch_size)
    )
    # Without threads and prefetching: what the step would wait for if batches were late. Without a
    # visit, too, as in evaluation: random augmentation is not part of this time.
    start = time.perf_counter()
    node.rows.gather(rows)
    seconds["assembling one batch"] = time.perf_counter() - start
    iterator.close()
    report: dict[str, Any] = {
        "describe": node.describe(),
        "spec": {
            name: {"shape": list(shape), "dtype": np.dtype(dtype).name}
            for name, (shape, dtype) in node.batch_spec(global_batch_size).items()
        },
        "batches": [_shown(batch, getattr(node, "tokenizer", None)) for batch in batches],
        "seconds": seconds,
    }
    if isinstance(node, TokenNode):
        report["lengths"] = histogram(node.stream.num_targets)
    if isinstance(node, Mixture):
        report["mixture"] = shares(node, seed, global_batch_size, steps)
    # A mixture has no epoch of its own; `shares` has one number for each component.
    elif steps:
        report["epochs"] = steps * global_batch_size / node.num_rows
    return report


def histogram(lengths: np.ndarray) -> list[dict[str, int]]:
    """Count lengths in bins that double: 1, 2 to 3, 4 to 7, and so on.

    Args:
      lengths: Numbers from 1, int64 [n].
    """
    # frexp is exact where log2 could round 2**k - 1 up to k.
    exponents = np.frexp(lengths.astype(np.float64))[1] - 1
    counts = np.bincount(exponents)
    first = int(np.flatnonzero(counts)[0])
    return [
        {"from": 1 << k, "to": (2 << k) - 1, "count": int(counts[k])}
        for k in range(first, len(counts))
    ]


def shares(node: Mixture, seed: int, global_batch_size: int, steps: int) -> list[dict[str, Any]]:
    """Count the rows of each component in each stage.

    Args:
      node: The mixture.
      seed: Seed of the order of rows.
      global_batch_size: The rows of a step.
      steps: Steps of the whole run; 0 when it is not known.

    Returns:
      For each component: `name`, `rows`, and for each stage the `planned` share and the `observed`
      one over its first 10,000 rows, as far as the mixture has them; with `steps`, `epochs`: how
      often each of its rows is seen.
    """
    # Read off the order, which is a function of positions: no data is touched, so that the shares
    # of the last stage of a long run are known before it starts.
    order = node.order(seed=seed, global_batch_size=global_batch_size)
    planned = node.describe()["components"]
    starts = [start for start, _ in order.stages]
    # The last stage has no end of its own, so its stop is that of the sample.
    stops = [*starts[1:], starts[-1] + SHARE_ROWS]
    observed = []
    for start, stop in zip(starts, stops, strict=True):
        # Counts and not a look-up of positions: where every component has a limit of epochs, the
        # mixture may end within the sample, or before the stage starts, whose shares are 0 then.
        counts = order.counts(min(stop, start + SHARE_ROWS)) - order.counts(start)
        observed.append(counts / max(counts.sum(), 1))
    total = steps * global_batch_size
    totals = order.counts(total)
    return [
        {
            "name": name,
            "rows": component.num_rows,
            "planned": planned[name]["shares"],
            "observed": [float(share[k]) for share in observed],
            **({"epochs": float(totals[k] / component.num_rows)} if total else {}),
        }
        for k, (name, component) in enumerate(node.components.items())
    ]


def picture(segments: np.ndarray, width: int = _PICTURE) -> str:
    """Return a row of segment numbers as letters; `.` is padding.

    Args:
      segments: The segment of each place, 0 for padding; int32 [L].
      width: The most letters.
    """
    # A sample of the places, evenly spread: a row of thousands must fit a line of the terminal.
    places = np.linspace(0, len(segments) - 1, min(width, len(segments))).astype(int)
    numbers = segments[places].tolist()
    return "".join("." if n == 0 else _SEGMENTS[(n - 1) % len(_SEGMENTS)] for n in numbers)


def _timed_stages(node: DataNode) -> Iterator[tuple[str, float]]:
    """Yield each stage before the first batch, and its seconds."""
    if isinstance(node, Packed):
        # The first pass also warms the file cache of the system, as a second start of a run finds
        # it.
        start = time.perf_counter()
        for _ in blocks(node.source):
            pass
        reading = time.perf_counter() - start
        yield "reading", reading
        start = time.perf_counter()
        node.stream  # noqa: B018
        # Tokenizing reads the documents again; the time of that is taken off.
        yield "tokenizing", max(time.perf_counter() - start - reading, 0.0)
    elif isinstance(node, TokenNode):
        start = time.perf_counter()
        node.stream  # noqa: B018
        yield "opening", time.perf_counter() - start
    start = time.perf_counter()
    node.num_rows  # noqa: B018
    yield "laying out rows", time.perf_counter() - start


def _shown(batch: dict[str, np.ndarray], tokenizer: Tokenizer | None) -> list[dict[str, Any]]:
    """Return a readable, JSON-able view of each row of a batch."""
    # By what a batch has and not by the class of the node: nodes of the user's own are shown as
    # well. Entries of one dimension are numbers of the row; others are shown only where they mean
    # text.
    size = len(next(iter(batch.values())))
    return [
        {
            **_texts(batch, row, tokenizer),
            **{
                name: batch[name][row].item()
                for name in ("labels", "examples")
                if name in batch and batch[name].ndim == 1
            },
            **(
                {"segments": picture(batch["segments"][row])}
                if "segments" in batch and batch["segments"].ndim == 2
                else {}
            ),
        }
        for row in range(size)
    ]


def _texts(batch: dict[str, np.ndarray], row: int, tokenizer: Tokenizer | None) -> dict[str, str]:
    """Return the decoded entries of a row that hold tokens."""
    if tokenizer is None:
        return {}
    # Which entries a batch has depends on its node: rows of text, pairs, or preferences. Padding is
    # where the segment is 0; token 0 may be a token like others, so it cannot tell.
    masks = {
        "inputs": "input_segments",
        "targets": "segments",
        "chosen_targets": "chosen_segments",
        "rejected_targets": "rejected_segments",
    }
    names = ["targets"] if "input_segments" not in batch else ["inputs", "targets"]
    names = names if "targets" in batch else ["chosen_targets", "rejected_targets"]
    return {
        name: tokenizer.decode(batch[name][row][batch[masks[name]][row] > 0])[:TEXT]
        for name in names
        if name in batch and masks[name] in batch
    }
