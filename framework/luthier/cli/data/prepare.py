"""`luthier data prepare`: a corpus into shards of tokens, with a bar and the time that is left."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

from luthier.errors import EXIT_DONE


def run(arguments: argparse.Namespace, source: Any, tokenizer: Any) -> int:
    """Prepare a corpus, or say what that would be; return the exit code.

    Args:
      arguments: What `luthier.cli.commands.data.add_arguments` describes.
      source: The documents.
      tokenizer: Turns them into tokens.
    """
    from luthier import data

    found = data.survey(source, tokenizer)
    layout = data.plan_layout(source, tokenizer, found, arguments.shards)
    processes = arguments.processes or min(os.cpu_count() or 1, layout.num_shards)
    estimate = {
        "documents": found.documents,
        "bytes": found.num_bytes,
        "tokens": found.num_tokens,
        "disk_bytes": found.disk_bytes,
        "shards": layout.num_shards,
        "processes": processes,
        "seconds": found.seconds / processes,
    }
    if arguments.dry_run:
        _print_estimate(estimate, found.sampled, arguments)
        return EXIT_DONE
    with _bar(layout.num_shards, found.documents) as report:
        manifest = data.prepare(
            source, tokenizer, arguments.file, layout, num_processes=processes, report=report
        )
    if arguments.json:
        print(json.dumps(manifest, indent=1))
        return EXIT_DONE
    print(
        f"prepared {arguments.file}: {manifest['documents']:,} documents, "
        f"{manifest['bytes']:,} bytes, {manifest['tokens']:,} tokens in "
        f"{len(manifest['shards'])} shards. To train on it, let `data` be\n"
        f'  luthier.data.Prepared("{arguments.file}", length=..., packing=..., tokenizer=...)'
    )
    return EXIT_DONE


def verify(arguments: argparse.Namespace) -> int:
    """Compare the shards of a folder with their digests; return the exit code.

    Args:
      arguments: What `luthier.cli.commands.data.add_arguments` describes.
    """
    from luthier import data

    manifest = data.verify(os.path.expanduser(arguments.file))
    print(f"{arguments.file}: {len(manifest['shards'])} shards are as they were written")
    return EXIT_DONE


def _print_estimate(estimate: dict[str, Any], sampled: int, arguments: argparse.Namespace) -> None:
    if arguments.json:
        print(json.dumps(estimate, indent=1))
        return
    about = "" if sampled == estimate["documents"] else "about "
    print(
        f"{estimate['documents']:,} documents, {about}{estimate['bytes']:,} bytes, "
        f"{about}{estimate['tokens']:,} tokens ({sampled} documents were looked at)\n"
        f"{estimate['shards']} shards of {about}{estimate['disk_bytes']:,} bytes together, "
        f"in about {_clock(estimate['seconds'])} with {estimate['processes']} processes\n"
        f"nothing was written"
    )


@contextlib.contextmanager
def _bar(shards: int, documents: int) -> Iterator[Callable[[dict[str, Any], bool], None]]:
    """Show a bar on a terminal, and a line now and then elsewhere; both on standard error."""
    if sys.stderr.isatty():
        with _live_bar(documents) as live:
            yield live
        return
    start, last, done, ready, kept = time.monotonic(), 0.0, 0, 0, 0

    def report(entry: dict[str, Any], there: bool) -> None:
        nonlocal last, done, ready, kept
        ready, done = ready + 1, done + entry["documents"]
        kept += entry["documents"] if there else 0
        now = time.monotonic() - start
        if ready < shards and now - last < 10:
            return
        last = now
        left = (documents - done) * now / max(done - kept, 1)
        line = f"{ready} of {shards} shards, {done:,} of {documents:,} documents"
        print(f"{line}, {_clock(left)} left", file=sys.stderr, flush=True)

    yield report


@contextlib.contextmanager
def _live_bar(documents: int) -> Iterator[Callable[[dict[str, Any], bool], None]]:
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn("documents"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.percentage:.0f} %"),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True)) as progress:
        bar = progress.add_task("documents", total=documents)
        yield lambda entry, there: progress.update(bar, advance=entry["documents"])


def _clock(seconds: float) -> str:
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{seconds:02d}" if hours else f"{minutes}:{seconds:02d}"
