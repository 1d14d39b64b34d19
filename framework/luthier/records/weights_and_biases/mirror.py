"""The process that mirrors a run in W&B: its graph, metrics, media, and difference to its parent.

All of it is read as data; nothing that a record names is imported.
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import dataclasses
import functools
import html
import importlib.util
import json
import os
import pathlib
import select
import shutil
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from luthier import environment
from luthier.errors import LuthierError, RunError
from luthier.records import events
from luthier.records.directory import RunDirectory
from luthier.records.metrics_file import Recorded, decode_event
from luthier.records.weights_and_biases.node import choose_mode
from luthier.storage import LineFollower, Lock, read_json

FOLDER = "luthier"
"""The folder of our files among those of a W&B run."""
_FILES = ("config.json", "config.history.json", "config.values.json")
_RESTORED_FROM = "luthier.checkpoint.FromRun"


@dataclasses.dataclass(frozen=True)
class Parent:
    """The run or experiment that a run was derived from.

    Args:
      title: Its name.
      folder: Where its config.json is.
    """

    title: str
    folder: pathlib.Path


def keep_graph(wandb_run: Any, run: RunDirectory) -> None:
    """Put the record of a run's graph among the files of its W&B run.

    Args:
      wandb_run: The W&B run.
      run: The run.
    """
    root = pathlib.Path(wandb_run.dir)
    (root / FOLDER).mkdir(parents=True, exist_ok=True)
    for name in _FILES:
        if (run.path / name).is_file():
            shutil.copyfile(run.path / name, root / FOLDER / name)
    wandb_run.save(os.path.join(root, FOLDER, "*.json"), base_path=str(root), policy="now")


OUTCOME, SUMMARY_RUN = "outcome", "summary_run"
"""Entries of the config of a trial of a study: how it ended, and the W&B run of the study."""


def keep_outcome(wandb_run: Any, run: RunDirectory) -> None:
    """Complete the config of a trial of a study: how it ended, and where the study's summary is.

    In the config and not only in the summary of the W&B run, because panels of parallel coordinates
    and tables group and filter by entries of the config.

    Args:
      wandb_run: The W&B run.
      run: The run.
    """
    config = read_json(run.path / "wandb.json", default={}).get("config") or {}
    if OUTCOME not in config:
        return
    status = wandb_run.summary.get("status", "failed")
    found = {OUTCOME: "complete" if status == events.FINISHED else status}
    # Offline, nothing has an address yet; the id is among the entries from the start.
    if wandb_run.url and config.get(SUMMARY_RUN):
        found["summary_url"] = f"{wandb_run.url.rpartition('/')[0]}/{config[SUMMARY_RUN]}"
    wandb_run.config.update(found, allow_val_change=True)


def parent_of(run: RunDirectory) -> Parent | None:
    """Return the parent of a run: the run that it restored, or the base of its study.

    Args:
      run: The run.
    """
    # The run that lent its weights is the closer relative of the two.
    found = _restored(run) or _base(run)
    return found if found is not None and (found.folder / "config.json").is_file() else None


def log_difference(wandb: Any, wandb_run: Any, run: RunDirectory) -> None:
    """Log what differs between a run and its parent as an artifact of type `diff`.

    Args:
      wandb: The wandb module.
      wandb_run: The W&B run.
      run: The run; without a parent, or with one that cannot be read, nothing is logged.
    """
    parent = parent_of(run)
    if parent is None:
        return
    from luthier.graph import compare

    try:
        # Both sides as records: nothing of the user's is imported in this process, and a parent
        # that cannot be read is no reason to lose the mirror.
        before = _document(parent.title, parent.folder)
        comparison = compare.compare(before, _document(f"{run.name}/{run.id}", run.path))
    except (LuthierError, OSError):
        return
    # A restart logs it again: W&B keeps no second version of an artifact with the same content.
    artifact = wandb.Artifact(
        f"diff-{wandb_run.id}",
        type="diff",
        description=f"what differs from {parent.title}",
        metadata={"parent": parent.title, "changes": len(comparison.changes)},
    )
    lines = [f"{change.path or 'the root'}: {change.summary}" for change in comparison.changes]
    for name, text in (
        ("diff.json", json.dumps(compare.to_json(comparison), indent=1)),
        ("diff.txt", "\n".join(lines) or "nothing differs"),
    ):
        with artifact.new_file(name) as file:
            file.write(text + "\n")
    wandb_run.log_artifact(artifact)


def _document(title: str, folder: pathlib.Path) -> Any:
    from luthier.graph import compare

    texts = {}
    for kind in ("history", "values"):
        path = folder / f"config.{kind}.json"
        texts[kind] = path.read_text(encoding="utf-8") if path.is_file() else ""
    return compare.read((folder / "config.json").read_text(encoding="utf-8"), title, **texts)


def _restored(run: RunDirectory) -> Parent | None:
    """Return the run whose weights a run began with."""
    try:
        data = json.loads(run.read_config())
        restore = data["graph"]["arguments"]["restore"]
        if restore["config"] != _RESTORED_FROM:
            return None
        folder = pathlib.Path(restore["arguments"]["directory"]).expanduser()
    except (LuthierError, ValueError, KeyError, TypeError):
        return None
    found = RunDirectory(folder)
    return Parent(f"{found.name}/{found.id}", folder)


def _base(run: RunDirectory) -> Parent | None:
    """Return the base of the study of whose trial a run is: trial 0."""
    trial = run.path.resolve().parent
    study = trial.parent.parent
    is_trial = trial.parent.name == "trials" and (study / "study.json").is_file()
    if not is_trial or not trial.name.isdecimal() or int(trial.name) == 0:
        return None
    return Parent(f"the base of {study.name}", trial.with_name("0" * len(trial.name)))


# The process that mirrors a run into Weights & Biases: the only importer of wandb.
#
#     python -m luthier.records.weights_and_biases.mirror RUN_DIRECTORY --mode auto --process PID
#     python -m luthier.records.weights_and_biases.mirror --process PID
#
# Without a run, its standard input names those to be mirrored, each from its beginning to its end
# (`serve`): it mirrors them side by side, and messages name the run that they are about.
#
# It follows the run's metrics.jsonl until its standard input ends or the training process is gone,
# then takes in the rest and finishes. It sends its parent messages for the user as JSON lines on
# the standard output; all other output goes to wandb/mirror.log.

_EXIT_CODES = {events.FINISHED: 0, events.PREEMPTED: 75, events.INTERRUPTED: 130}
_POLL_SECONDS = 1.0
Send = Callable[..., None]


class Lines:
    """Reads whole lines of a file that grows.

    Args:
      path: The file; it may not exist yet.
    """

    def __init__(self, path: pathlib.Path):
        self._lines = LineFollower(path)

    def read(self) -> Iterator[Recorded]:
        """Yield the events that were added since the last call.

        Raises:
          RunError: The file cannot be read.
          VersionError: It was written by a later luthier.
        """
        for line in self._lines.lines():
            try:
                recorded = decode_event(line.record)
            except (RunError, ValueError, KeyError, TypeError):
                self._lines.leave_out(line)
                continue
            if recorded is not None:
                yield recorded

    @property
    def report(self) -> str:
        """One line about what was left out; empty where all was whole."""
        return self._lines.report

    def close(self) -> None:
        """Close the file."""
        self._lines.close()


class MirroredRows:
    """Turns events into W&B history rows, one per step, in the order of steps.

    W&B takes rows in ascending order only. A row is complete when a later step is recorded.

    Args:
      run: The W&B run.
      wandb: The wandb module.
      run_path: The run's directory, where images lie.
    """

    def __init__(self, run: Any, wandb: Any, run_path: pathlib.Path = pathlib.Path()):
        self._run = run
        self._wandb = wandb
        self._run_path = run_path
        # Online and resumed: the server has the rows before this one.
        # W&B drops rows with a step that is not larger than the last one, with a warning for each.
        self._next = int(run.step or 0) if getattr(run, "resumed", False) else 0
        self._waiting: dict[int, dict[str, Any]] = {}
        self._last_step = -1
        self._defined: set[str] = set()
        self.exit_code = 1

    def take(self, recorded: Recorded) -> None:
        """Take in an event."""
        # Saves and notices stay in metrics.jsonl: W&B has no place for them in its history.
        event, step = recorded.event, recorded.step
        if isinstance(event, events.Step):
            row = {_step_key(name): value for name, value in event.values.items()}
            self._add(step, recorded.time, row)
            # After a restart steps come again that were taken before: what waits is never put back.
            self._last_step = max(self._last_step, step)
            # An evaluation or an image of a step arrives after the step's own line, so a row is
            # held back until a later step shows that nothing more belongs to it.
            self.release(self._last_step)
        elif isinstance(event, events.Evaluation):
            row = {f"eval/{event.name}/{name}": value for name, value in event.values.items()}
            for name, direction in event.better.items():
                self._define(f"eval/{event.name}/{name}", direction)
            self._add(step, recorded.time, row)
        elif isinstance(event, events.Sample):
            key = f"sample/{event.name}" if event.name else "sample"
            self._add(step, recorded.time, {key: self._text(event)})
        elif isinstance(event, events.Image):
            image = self._image(event)
            if image is not None:
                self._add(step, recorded.time, {f"images/{event.name}": image})
        elif isinstance(event, events.Histogram):
            key = f"histograms/{event.name}"
            self._add(step, recorded.time, {key: self._histogram(event)})
        # A header is the start of another process of the same run: until it ends well, W&B shall
        # show the run as crashed.
        elif isinstance(event, events.Header):
            self.exit_code = 1
            self._header(event)
        elif isinstance(event, events.Ended):
            self.exit_code = _EXIT_CODES.get(event.status, 1)
            self._run.summary["status"] = event.status
            self._run.summary.update(dict(event.summary))

    def release(self, before: float = float("inf")) -> None:
        """Log the rows of steps before `before`."""
        for step in sorted(step for step in self._waiting if step < before):
            row = self._waiting.pop(step)
            if step >= self._next:
                self._run.log(row, step=step)
                self._next = step + 1

    def _histogram(self, histogram: events.Histogram) -> Any:
        import numpy as np

        bins = np.asarray(histogram.counts), np.asarray(histogram.edges)
        return self._wandb.Histogram(np_histogram=bins)

    def _text(self, sample: events.Sample) -> Any:
        prompt = f"<b>{html.escape(sample.prompt)}</b>" if sample.prompt else ""
        return self._wandb.Html(f"<pre>{prompt}{html.escape(sample.text)}</pre>", inject=False)

    def _image(self, image: events.Image) -> Any:
        """Return W&B's image, or a page with the image in it where Pillow is not installed."""
        path = self._run_path / image.path
        try:
            data = path.read_bytes()
        except OSError:
            return None  # removed by a restart, whose own line follows
        if importlib.util.find_spec("PIL") is not None:
            return self._wandb.Image(str(path))
        source = f"data:image/png;base64,{base64.b64encode(data).decode()}"
        return self._wandb.Html(f'<img src="{source}" alt="{image.name}">', inject=False)

    def _add(self, step: int, time: float, row: dict[str, Any]) -> None:
        self._waiting.setdefault(step, {"_timestamp": time}).update(row)

    def _define(self, key: str, direction: str) -> None:
        if key not in self._defined:
            self._defined.add(key)
            # The best value in the summary, which W&B tables sort by, and the last one beside it.
            self._run.define_metric(key, summary="min,last" if direction == "lower" else "max,last")

    def _header(self, header: events.Header) -> None:
        summary = self._run.summary
        facts = {
            "parameters": header.parameters,
            "flops_per_step": header.flops_per_step,
            "memory_bytes_per_device": header.memory_bytes_per_device,
            "devices": header.devices,
        }
        summary.update({name: value for name, value in facts.items() if value not in (None, "")})
        for name, described in header.evaluations.items():
            for key, value in described.items():
                if key.endswith("_entropy"):
                    summary[f"eval/{name}/{key}"] = value


def _step_key(name: str) -> str:
    if name in (events.TOKENS, events.EPOCHS) or "/" in name:
        return name
    # W&B makes a section of charts for each prefix.
    return f"performance/{name}" if name in events.PERFORMANCE else f"train/{name}"


def _config(run: RunDirectory) -> dict[str, Any]:
    """Return the resolved graph as nested values, and what source ran."""
    return {**run.read_values(), "source": run.read_source(), "run_directory": str(run.path)}


def _begin(wandb: Any, run: RunDirectory, mode: str, process: int) -> Any:
    """Start the W&B run."""
    fields = read_json(run.path / "wandb.json", default={})
    source = run.read_source()
    # wandb reads `sys.argv` for the command that it shows, and this process has its own arguments.
    program, *sys.argv[1:] = source.get("arguments") or ["luthier"]  # W&B shows the command line
    settings = {
        "program": program,
        "git_commit": source.get("git", {}).get("revision") or None,
        # `x_stats_pid`: load is sampled of the process that trains and its children, not of this
        # mirror.
        "x_disable_stats": not fields.get("system_metrics", True),
        "x_stats_pid": process,
        "x_stats_track_process_tree": True,
        # Of several runs that are open in one process, none ends another.
        "reinit": "create_new",
    }
    return begin(wandb, fields, run.path, _config(run), mode, settings)


def begin(
    wandb: Any,
    fields: Mapping[str, Any],
    folder: pathlib.Path,
    config: Mapping[str, Any],
    mode: str,
    settings: Mapping[str, Any],
) -> Any:
    """Start a W&B run.

    Args:
      wandb: The wandb module.
      fields: The content of `wandb.json`: project, entity, id, name, group and more.
      folder: Where W&B keeps its files, below `wandb`.
      config: The run's configuration.
      mode: `online` or `offline`.
      settings: Settings of wandb beside those that all our runs have.
    """
    wandb_settings = wandb.Settings(
        # Everything that makes wandb print, hook the console, look at git or copy code is off:
        # records hold source and output already, without secrets. The two time limits keep a
        # network that hangs from holding the end of the run for ever.
        console="off",
        silent=True,
        disable_git=True,
        save_code=False,
        use_dot_wandb=False,
        init_timeout=60,
        finish_timeout=float(fields.get("finish_seconds", 60.0)),
        **settings,
    )
    return wandb.init(
        project=fields.get("project"),
        entity=fields.get("entity"),
        id=fields.get("id"),
        name=fields.get("name"),
        group=fields.get("group"),
        job_type=fields.get("job_type"),
        notes=fields.get("notes"),
        tags=fields.get("tags") or None,
        dir=str(folder),
        config={**config, **(fields.get("config") or {})},
        mode=mode,
        # Offline runs cannot be resumed: each mirror writes a file of its own, with all rows from
        # the first, and the files of earlier mirrors are deleted once it is complete (see
        # `mirror`).
        resume="allow" if mode == "online" else None,
        settings=wandb_settings,
    )


def offline_directories(folder: pathlib.Path) -> set[pathlib.Path]:
    """Return the offline files of earlier mirrors in a folder."""
    return {path for path in (folder / "wandb").glob("offline-run-*") if path.is_dir()}


def opened(mode: str, begin_in: Callable[[str], Any], send: Send) -> tuple[str, Any]:
    """Start a W&B run, offline where online fails, and report its place.

    Args:
      mode: `auto`, `online` or `offline`.
      begin_in: Starts it in a mode.
      send: Sends a message to the parent.

    Returns:
      The mode, and the W&B run.
    """
    mode, reason = choose_mode(mode)
    try:
        run = begin_in(mode)
    except Exception as error:
        if mode == "offline":
            raise
        # Also where `online` was asked for: an offline file can be uploaded later, while a mirror
        # that has failed leaves nothing.
        mode, reason = "offline", f"online failed: {_line(error)}"
        run = begin_in(mode)
    if mode == "offline":
        path = str(pathlib.Path(run.dir).parent)
        text = f"offline{f' ({reason})' if reason else ''}; to upload it: wandb sync {path}"
        send(mode=mode, path=path, notice=text)
    else:
        send(mode=mode, path=str(run.dir), url=run.url or "", notice=run.url or "")
    return mode, run


def mirror(
    run: RunDirectory,
    mode: str,
    process: int,
    ended: Callable[[], bool],
    send: Send,
    starting: contextlib.AbstractContextManager[Any] | None = None,
) -> None:
    """Mirror a run until `ended()`, which waits a moment, returns true.

    Args:
      run: The run.
      mode: `auto`, `online` or `offline`.
      process: The process that trains, whose load is sampled.
      ended: Whether training is over.
      send: Sends a message to the parent.
      starting: Held while the W&B run is started, where several runs are mirrored.
    """
    with starting or contextlib.nullcontext():
        import wandb

        # Listed before this mirror makes its own.
        superseded = offline_directories(run.path)
        mode, wandb_run = opened(mode, lambda chosen: _begin(wandb, run, chosen, process), send)
    keep_graph(wandb_run, run)
    log_difference(wandb, wandb_run, run)
    rows = MirroredRows(wandb_run, wandb, run.path)
    lines = Lines(run.metrics_path)
    running = True
    while running:
        # The state is asked before the lines are read, so that one more pass follows after training
        # has ended: its last lines may have been written in between.
        running = not ended()
        for recorded in lines.read():
            rows.take(recorded)
    lines.close()
    rows.release()
    if lines.report:
        send(notice=lines.report)
    keep_outcome(wandb_run, run)
    wandb_run.finish(exit_code=rows.exit_code)
    # Only now is the new file complete. An online mirror has made no file that replaces them, so
    # that offline files stay.
    if mode == "offline":
        for earlier in superseded:
            shutil.rmtree(earlier, ignore_errors=True)


def _line(error: BaseException) -> str:
    return " ".join(str(error).split())[:300] or type(error).__name__


def _has_ended(parent: int) -> bool:
    """Wait a moment; return whether the standard input or the parent has ended."""
    # The parent holds the other end of the pipe and writes nothing: reading nothing from it means
    # that it was closed. A parent that was killed is noticed by our new parent, too, because a
    # forked process may still hold the pipe open.
    readable, _, _ = select.select([sys.stdin], [], [], _POLL_SECONDS)
    return bool(readable and not os.read(0, 4096)) or os.getppid() != parent


def serve(parent: int, process: int, patience: float, send: Send) -> None:
    """Mirror the runs that the standard input names, until it or the parent ends.

    Its lines are `{"begin": key, "run": folder, "mode": mode}` and `{"end": key}`.

    Args:
      parent: The parent of this process.
      process: The process that trains, whose load is sampled.
      patience: Seconds to wait for the former mirror of a run.
      send: Sends a message to the parent.
    """
    ends: dict[int, threading.Event] = {}
    threads: list[threading.Thread] = []
    # wandb sets itself up in the first `init`, and luthier sets `sys.argv` for each.
    starting = threading.Lock()

    def follow(key: int, folder: str, mode: str, ended: threading.Event) -> None:
        run = RunDirectory(folder)
        about: Send = functools.partial(send, key=key)
        try:
            with Lock(run.path / "wandb" / "lock", patience_seconds=patience):
                mirror(run, mode, process, lambda: ended.wait(_POLL_SECONDS), about, starting)
        except BaseException as error:
            about(failed=_line(error))
            traceback.print_exc()
        else:
            about(done=True)

    buffer = b""
    while os.getppid() == parent:
        readable, _, _ = select.select([sys.stdin], [], [], _POLL_SECONDS)
        if not readable:
            continue
        read = os.read(0, 65536)
        if not read:
            break
        *lines, buffer = (buffer + read).split(b"\n")
        for message in map(json.loads, lines):
            if "begin" in message:
                key = message["begin"]
                ended = ends[key] = threading.Event()
                arguments = (key, message["run"], message["mode"], ended)
                threads.append(threading.Thread(target=follow, args=arguments))
                threads[-1].start()
            else:
                ends.pop(message["end"]).set()
    for ended in ends.values():
        ended.set()
    for thread in threads:
        thread.join()


def own_output() -> Send:
    """Return a function that sends messages to the parent, and redirect all other output."""
    # Standard output is a channel of JSON lines to the parent. wandb and its libraries print, so
    # the channel moves to another descriptor, and descriptor 1 leads to standard error.
    parent_output = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)

    lock = threading.Lock()

    def send(**message: Any) -> None:
        with lock, contextlib.suppress(OSError):
            parent_output.write(json.dumps(message) + "\n")
            parent_output.flush()

    return send


def main(arguments: list[str] | None = None) -> int:
    """Run the process; return its exit code."""
    parent = os.getppid()
    parser = argparse.ArgumentParser()
    parser.add_argument("run_directory", nargs="?")
    parser.add_argument("--mode", default="auto")
    parser.add_argument("--process", type=int, default=0)
    parser.add_argument("--patience", type=float, default=30.0)
    options = parser.parse_args(arguments)
    environment.collect_rarely()
    # It ends when training does, not when somebody interrupts training.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    with contextlib.suppress(OSError):
        # Steps are dispatched from Python on the same cores.
        os.nice(10)
    send = own_output()
    if options.run_directory is None:
        serve(parent, options.process, options.patience, send)
        return 0
    run = RunDirectory(options.run_directory)
    try:
        # The mirror of the run's former process may still be uploading: two of them would send rows
        # of one run at once.
        with Lock(run.path / "wandb" / "lock", patience_seconds=options.patience):
            mirror(run, options.mode, options.process, lambda: _has_ended(parent), send)
    except BaseException as error:
        send(failed=_line(error))
        raise
    return 0


if __name__ == "__main__":
    sys.exit(main())
