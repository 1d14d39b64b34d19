"""A W&B run that sums up many runs: a table of them, one row of history for each, pages.

    python -m luthier.records.weights_and_biases.summary DIRECTORY --mode auto

reads DIRECTORY/wandb.json and DIRECTORY/wandb/summary.json, which `SummaryWriter` writes, once
there is a line on its standard input. It is a process of its own, so that nothing of wandb can
block or crash the one that calls.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import os
import pathlib
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from luthier import environment
from luthier.errors import Problem, RunError
from luthier.records.redaction import write_json
from luthier.records.weights_and_biases import mirror
from luthier.records.weights_and_biases.node import (
    SETTINGS_FILE,
    Mirrored,
    Wandb,
    end_process,
    resolved_mode,
    start_process,
)
from luthier.storage import Lock, read_json

FILE = "summary.json"
_SENT = "summary_rows.json"  # which rows of the history the server has


@dataclasses.dataclass(frozen=True)
class Summary:
    """The summary of many runs.

    Args:
      name: The name of the W&B run.
      group: Name of the group of the runs.
      config: The configuration that the runs share.
      columns: Column headers of the table.
      rows: Rows of the table: numbers, texts and None.
      history: Contents of each row of W&B's history, in order.
      key: Name of the entry that identifies a row of the history.
      better: `lower` or `higher` for each metric of the history that is optimized.
      facts: Entries of the run's summary.
      pages: Title and path of HTML pages.
    """

    name: str
    group: str
    config: Mapping[str, Any]
    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]
    history: Sequence[Mapping[str, float]]
    key: str
    better: Mapping[str, str]
    facts: Mapping[str, Any]
    pages: Mapping[str, str]


def id_of_summary(directory: pathlib.Path) -> str:
    """Return the id of the W&B run of a summary, which is the same whenever it is made again.

    Args:
      directory: Where its files are kept.
    """
    path = directory / SETTINGS_FILE
    fields = read_json(path, default={})
    if not fields.get("id"):
        # Written down at once: runs may name it long before the summary is made.
        fields["id"] = os.urandom(4).hex()
        write_json(path, fields)
    found: str = fields["id"]
    return found


def mirror_summary(node: Wandb, directory: pathlib.Path, summary: Summary) -> Mirrored | None:
    """Make the W&B run of a summary, or make it anew; wait until it is done.

    Args:
      node: Settings of the mirror.
      directory: Where its files are kept.
      summary: Its content.

    Returns:
      Where it is; None where W&B is off.

    Raises:
      RunError: It cannot be done; the message says why.
    """
    if resolved_mode(node.mode) == "off":
        return None
    with SummaryWriter(node, directory) as writer:
        return writer.write(summary)


class SummaryWriter:
    """Makes the W&B run of a summary in a process that imports wandb before there is a summary.

    A context manager: the process ends with it, where nothing was written.

    Args:
      node: Settings of the mirror, which is not off.
      directory: Where its files are kept.
    """

    def __init__(self, node: Wandb, directory: pathlib.Path):
        self._node, self._directory = node, directory
        self._folder = directory / "wandb"
        self._process: subprocess.Popen[bytes] | None = None
        self._error: OSError | RunError | None = None
        try:
            arguments = [str(directory.resolve()), "--mode", resolved_mode(node.mode)]
            self._process = start_process("summary", arguments, self._folder, subprocess.PIPE)
        except (OSError, RunError) as error:
            # Raised by `write`: what is done meanwhile does not depend on W&B.
            self._error = error

    def __enter__(self) -> SummaryWriter:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self._process.kill()
            with self._process:
                pass

    def write(self, summary: Summary) -> Mirrored:
        """Make the run, or replace it; wait until it is done.

        Args:
          summary: Its content.

        Returns:
          Where it is.

        Raises:
          RunError: It cannot be done; the message says why.
        """
        what = f"W&B cannot mirror {self._directory}"
        process = self._process
        if process is None:
            raise RunError(Problem(f"{what}: {self._error}")) from self._error
        node = self._node
        fields = dataclasses.asdict(node)
        fields |= {"name": summary.name, "group": summary.group, "job_type": "summary"}
        fields["tags"] = list(node.tags)
        # The same id, because a study that has grown continues its W&B run (`write`).
        fields["id"] = id_of_summary(self._directory)
        write_json(self._directory / SETTINGS_FILE, fields)
        # Absolute, because the process that reads them has a folder of its own.
        pages = {title: str(pathlib.Path(page).resolve()) for title, page in summary.pages.items()}
        write_json(self._folder / FILE, dataclasses.asdict(summary) | {"pages": pages})
        assert process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it has failed, and says why
            process.stdin.write(b"go\n")
            process.stdin.close()
        self._process = None  # it has work now, and ends by itself
        return end_process(process, what, self._folder)


def write(directory: pathlib.Path, mode: str, send: mirror.Send) -> None:
    """Write the W&B run of a summary.

    Args:
      directory: Where its files are kept.
      mode: `auto`, `online` or `offline`.
      send: Sends a message to the parent.
    """
    import wandb

    if not sys.stdin.readline():
        return  # the parent has ended
    # W&B keeps history in ascending steps, one row each. A summary is made again whenever a study
    # has grown: online, the server has rows already, up to `run.step`, and only new ones are sent;
    # offline, a new file holds all of them, and the former ones are deleted once it is complete.
    fields = read_json(directory / SETTINGS_FILE, default={})
    content = read_json(directory / "wandb" / FILE, default={})
    superseded = mirror.offline_directories(directory)
    settings = {"program": "luthier sweep", "x_disable_stats": True}

    def begin(chosen: str) -> Any:
        return mirror.begin(wandb, fields, directory, content["config"], chosen, settings)

    mode, run = mirror.opened(mode, begin, send)
    for name, direction in content["better"].items():
        run.define_metric(name, summary="min" if direction == "lower" else "max")
    seen = int(run.step or 0) if getattr(run, "resumed", False) else 0
    # Rows are known by their key and not by their place: a trial may end after later ones that were
    # sent, and tables may have had a row of their own (below). Earlier versions kept no keys.
    history, key = content["history"], content["key"]
    sent = read_json(directory / "wandb" / _SENT, default=None) if seen else []
    if sent is None:
        sent = [row[key] for row in history[:seen]]
    new = [row for row in history if row[key] not in sent]
    for step, row in enumerate(new, seen):
        run.log(row, step=step)
    rows = [list(row) for row in content["rows"]]
    table = wandb.Table(columns=list(content["columns"]), data=rows)
    # Tables and pages replace the former ones; they are logged with the last row, because a later
    # step would be one of its own. Where the server has that row already they do get one: W&B drops
    # a row whose step is not larger than its last.
    last: dict[str, Any] = {"runs": table}
    for title, path in content["pages"].items():
        last[title] = wandb.Html(pathlib.Path(path).read_text(encoding="utf-8"), inject=False)
    run.log(last, step=seen + max(len(new) - 1, 0))
    run.summary.update(content["facts"])
    run.finish(exit_code=0)
    if mode == "online":
        write_json(directory / "wandb" / _SENT, [*sent, *(row[key] for row in new)])
    if mode == "offline":
        for earlier in superseded:
            shutil.rmtree(earlier, ignore_errors=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the process; return its exit code."""
    parser = argparse.ArgumentParser()
    parser.add_argument("directory", type=pathlib.Path)
    parser.add_argument("--mode", default="auto")
    options = parser.parse_args(arguments)
    environment.collect_rarely()
    send = mirror.own_output()
    try:
        with Lock(options.directory / "wandb" / "lock", patience_seconds=30.0):
            write(options.directory, options.mode, send)
    except BaseException as error:
        send(failed=" ".join(str(error).split())[:300] or type(error).__name__)
        raise
    return 0


if __name__ == "__main__":
    sys.exit(main())
