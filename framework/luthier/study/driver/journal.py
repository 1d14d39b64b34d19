"""The journal of a study: a JSON line for every event, durable before the event takes effect.

Lines have numbers and checksums, and a disk that refuses leaves the file as it was
(`luthier.storage.json_lines`). What a killed driver left behind its last line break is cut off when
the next one opens the file. Everything else that a study keeps can be made again from here; and
where lines are damaged or missing, `luthier sweep repair` makes them again from the folders of the
trials.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
import pathlib
import re
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from luthier import project
from luthier.errors import Problem, RunError
from luthier.records.redaction import redact
from luthier.storage import LineReader, LineWriter, sync_directory
from luthier.storage.bucket import Bucket, patiently
from luthier.study.driver.trial_table import ENDED, Ledger

NAME = "journal.jsonl"

PATIENCE_SECONDS = 10.0
"""The time for which a failing disk is retried: workers continue, and most full disks are short."""

_RETRY_SECONDS = 0.5


class Journal:
    """Appends to a study's journal; its only writer is the process that holds the study's lock.

    Args:
      path: The file; it is made where there is none, and mended where its last line is torn.
      fence: Raises `LockLost` where another process drives the study now.
      upload: Brings the file into the object store that is the study's home.

    Raises:
      RunError: It cannot be written.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        fence: Callable[[], None] = lambda: None,
        upload: Callable[[], None] = lambda: None,
    ):
        self.path = pathlib.Path(path)
        self._upload = upload
        self._file = LineWriter(self.path, fence)
        self.mended = self._file.mended
        # The file's own name must survive a power cut, too.
        sync_directory(self.path.parent)

    def add(self, kind: str, **fields: Any) -> dict[str, Any]:
        """Append a line; it is on the disk after the next `commit`.

        Args:
          kind: What happened.
          **fields: What there is to say about it.

        Returns:
          The line.
        """
        # The wall clock, for people and timelines; a driver measures device time by the monotonic
        # one.
        line = {"kind": kind, "at": round(time.time(), 3), **fields}
        # Redacted as text and not as fields: an error message that is quoted in a reason may hold a
        # secret anywhere.
        self._file.add(redact(encode_line(line)))
        return line

    def commit(self, patience_seconds: float = PATIENCE_SECONDS) -> None:
        """Write everything that was added to the disk, and wait until it is there.

        Args:
          patience_seconds: How long to ask a disk that refuses again.

        Raises:
          RunError: The disk refuses; the file is as it was, and the next call tries again.
          LockLost: Another process drives the study now.
        """
        _persist(self._file.commit, patience_seconds)

    def publish(self) -> None:
        """Commit, and have the lines survive this machine: workers will act on them.

        The driver that comes next may have an empty disk, and know only what is in the object
        store. It must not lease a trial under a fence that a worker has already.

        Raises:
          RunError: The disk or the object store refuses; the next call tries again.
          LockLost: Another process drives the study now.
        """
        self.commit()
        _persist(lambda: patiently(self._upload), PATIENCE_SECONDS)

    def close(self) -> None:
        """Commit, and close the file."""
        try:
            self.commit(patience_seconds=0.0)
        finally:
            self._file.close()


# Workers keep training while the driver waits here, and most full disks are freed soon: giving up
# at once would stop a study of days.
def _persist(write: Callable[[], None], patience_seconds: float) -> None:
    deadline = time.monotonic() + patience_seconds
    while True:
        try:
            return write()
        except RunError:
            if time.monotonic() >= deadline:
                raise
            time.sleep(_RETRY_SECONDS)


def encode_line(line: Mapping[str, Any]) -> str:
    """Serialize one journal entry; NaN and infinities are encoded as `{"float": "nan"}`."""
    return json.dumps(_strict(line), separators=(",", ":"), allow_nan=False)


def _strict(value: Any) -> Any:
    # By exact type first, because nearly all values are plain ones.
    kind = type(value)
    if kind in (str, int, bool, type(None)):
        return value
    if kind is float:
        # A loss of NaN is a result and must come back as one; strict JSON has no name for it.
        return value if math.isfinite(value) else {"float": repr(value)}
    if isinstance(value, Mapping):
        return {key: _strict(child) for key, child in value.items()}
    if isinstance(value, list | tuple):
        return [_strict(child) for child in value]
    return value


def decode_numbers(value: Any) -> Any:
    """Restore the floats that `encode_line` encoded because JSON has no number for them."""
    if isinstance(value, dict):
        if value.keys() == {"float"}:
            return float(value["float"])
        return {key: decode_numbers(child) for key, child in value.items()}
    return [decode_numbers(child) for child in value] if isinstance(value, list) else value


@dataclasses.dataclass(frozen=True)
class Contents:
    """The contents of a journal.

    Args:
      lines: Its lines; those that cannot be followed are left out, and for settings whose own line
        is lost there is one that knows no more than their numbers.
      problems: What is wrong with it, a line each.
      whole: All of its lines that are whole, whether they can be followed or not.
    """

    lines: list[dict[str, Any]]
    problems: list[str]
    whole: list[dict[str, Any]]


def load_journal(path: str | os.PathLike[str]) -> Contents:
    """Read a journal, also a damaged one.

    Args:
      path: The file; none has no lines.

    Raises:
      RunError: It cannot be read.
      VersionError: It was written by a later luthier.
    """
    reader = LineReader(path, accepts=_is_line)
    # Two kinds of damage: the lines themselves (checksums, numbers; `LineReader`), and lines that
    # are whole but do not follow from those before, because one in between is lost
    # (`_Consistency`).
    # All lines at once: what the reader has to report is known only when it has read them.
    places = [(line.place, decode_numbers(line.record)) for line in reader.lines()]
    problems = [reader.report] if reader.report else []
    consistency, lines = _Consistency(), []
    for place, line in places:
        problem = consistency.problem(line)
        # After one lost line, each later line of its trial is a problem, too: a few of them say it
        # all.
        if problem and len(problems) < 8:
            problems.append(f"{project.address(path)}: line {place}: {problem}")
        lines += consistency.take(line)
    return Contents(lines, problems, [line for _, line in places])


def read_journal(path: str | os.PathLike[str]) -> Iterator[dict[str, Any]]:
    """Yield the lines of a journal that can be followed; one that is being written is left out.

    Args:
      path: The file; none has no lines.

    Raises:
      RunError: It cannot be read.
      VersionError: It was written by a later luthier.
    """
    yield from load_journal(path).lines


def require_whole(path: str | os.PathLike[str]) -> None:
    """Raise where a journal lacks lines: a study that resumed from it would be another one.

    Args:
      path: The file.

    Raises:
      RunError: It is damaged; the message names the remedy.
      VersionError: It was written by a later luthier.
    """
    contents, folder = load_journal(path), pathlib.Path(path).parent
    problems = contents.problems
    # An empty journal is whole by itself. Only the trials' folders show that there was one, and
    # without this a resumed study would start from its first setting and run everything again.
    if not contents.lines and has_results(folder):
        problems = [f"{project.address(path)} is empty or missing, but trials have ended"]
    if problems:
        more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
        remedy = (
            f"`luthier sweep repair {project.address(folder)}` makes it again from the trials' "
            "folders, "
            "and keeps the damaged one"
        )
        raise RunError(Problem(problems[0] + more, remedy=remedy))


def has_results(folder: pathlib.Path) -> bool:
    """Return whether a trial of a study has ended, as its worker wrote it down.

    Args:
      folder: The study's folder.

    Raises:
      RunError: The object store that is the study's home refuses.
    """
    if url := project.bucket_url(folder):
        names = Bucket(url).list("trials/")
        return any(re.fullmatch(r"trials/\d+/result\.json", name) for name in names)
    return any(folder.glob("trials/*/result.json"))


_NUMBER = (int, float)
# What `Ledger.follow` reads of each kind without asking: a line that lacks it is damaged, however
# right its checksum is (lines of the first format have none).
_NEEDED: dict[str, dict[str, Any]] = {
    "asked": {"setting": int, "trials": list, "assignment": dict, "words": list},
    "told": {"setting": int},
    "admitted": {"trial": int},
    "leased": {"trial": int, "slice": int, "fence": int},
    "reported": {"trial": int, "step": int},
    "reached": {"trial": int, "step": int, "rung": int, "value": _NUMBER},
    "paused": {
        "trial": int,
        "step": int,
        "rung": int,
        "value": _NUMBER,
        "device_seconds": _NUMBER,
    },
    "promoted": {"trial": int, "step": int, "rung": int, "value": _NUMBER},
    "lost": {"trial": int, "counts": int},
    "ended": {"trial": int, "outcome": str, "reason": str, "device_seconds": _NUMBER},
    "retried": {"trial": int},
    "reopened": {"trial": int},
    "closed": {"over": bool},
    "noted": {"notice": str},
    "opened": {"slices": list},
}
_OPTIONAL: dict[str, Any] = {
    "device_seconds": _NUMBER,
    "fault": str,
    "stopped": str,
    "stopped_by": str,
    "notes": dict,
    "restarts": bool,
    "fraction": _NUMBER,
    "spent": _NUMBER,
}


def _is_line(line: Mapping[str, Any]) -> bool:
    """Return whether a line has all that its kind needs; kinds of later versions are let pass."""
    if not isinstance(line.get("kind"), str) or not isinstance(line.get("at"), _NUMBER):
        return False
    # Kinds that are not listed are of a later luthier, and need nothing.
    needed = _NEEDED.get(line["kind"], {})
    if not all(isinstance(line[n], kind) for n, kind in _OPTIONAL.items() if n in line):
        return False
    if not all(isinstance(line.get(name), kind) for name, kind in needed.items()):
        return False
    if line["kind"] == "opened":
        return all(isinstance(each, dict) and _is_slice(each) for each in line["slices"])
    return line["kind"] != "ended" or isinstance(line.get("values"), list | None)


def _is_slice(slice: Mapping[str, Any]) -> bool:
    return isinstance(slice.get("index"), int) and isinstance(slice.get("num_devices"), int)


# Folds the journal into a trial table of its own, and judges each line against the state before it.
# Where the line of a setting is lost, later lines name trials that nobody asked: placeholders are
# put in front of them, so that `sweep show` can still display everything else.
class _Consistency:
    """Checks whether a line can follow those before it."""

    def __init__(self) -> None:
        self._ledger = Ledger()

    def problem(self, line: Mapping[str, Any]) -> str:
        """Return the contradiction between a line and those before it; empty if there is none."""
        kind, ledger = line["kind"], self._ledger
        if kind == "asked":
            # Settings are asked in the order of their numbers, so a gap means that lines between
            # are lost, and a number below that a line is doubled.
            if line["setting"] < len(ledger.settings):
                return f"setting {line['setting']} was asked before"
            lost = line["setting"] - len(ledger.settings)
            return f"{_settings(lost)} before setting {line['setting']}" if lost else ""
        if kind == "told":
            if line["setting"] >= len(ledger.settings):
                return f"setting {line['setting']} was never asked"
            setting = ledger.settings[line["setting"]]
            if setting.is_reported:
                return f"setting {line['setting']} was reported before"
            if ledger.outcome_of(setting) is None:
                return f"setting {line['setting']} was reported before its trials had ended"
        trial = line.get("trial", 0)
        if trial >= len(ledger.trials) and "trial" in line:
            return f"trial {trial} was never asked"
        # Of the other lines of a trial only the end is judged: a second one would replace a result
        # that the sampler may have. Lines that are missing in between show in the numbers of the
        # lines (`LineReader`).
        # A retried trial may end again, but then the line `retried` has put it back to `waiting`
        # before.
        if kind == "ended" and ledger.trials[trial].state in ENDED:
            return f"trial {trial} had ended before"
        return ""

    def take(self, line: dict[str, Any]) -> list[dict[str, Any]]:
        """Return the lines to follow: the line itself, none, or placeholders and the line."""
        found = []
        if line["kind"] == "asked" and line["setting"] > len(self._ledger.settings):
            found = self._placeholders(line["setting"], line["trials"][0], line["at"])
        elif line.get("trial", 0) >= len(self._ledger.trials) and "trial" in line:
            seeds = len(self._ledger.settings[-1].trials) if self._ledger.settings else 1
            number = len(self._ledger.trials)
            # How many settings are missing follows from the trials that are: each setting has
            # `seeds` of them.
            lost = -(-(line["trial"] + 1 - number) // seeds)
            first = number + lost * seeds
            found = self._placeholders(len(self._ledger.settings) + lost, first, line["at"])
        # A line that contradicts the others is dropped, but reported: following it would raise, or
        # put a trial into a state that it never had.
        elif self.problem(line):
            return []
        for each in (*found, line):
            self._ledger.follow(each)
        return [*found, line]

    def _placeholders(self, setting: int, trial: int, at: float) -> list[dict[str, Any]]:
        """Return lines for all settings and trials up to a setting that begins with a trial."""
        known, number = len(self._ledger.settings), len(self._ledger.trials)
        count = max(setting - known, 0)
        seeds = max((trial - number) // count, 0) if count else 0
        return [
            {
                "kind": "asked",
                "at": at,
                "setting": known + index,
                "trials": list(range(number + index * seeds, number + (index + 1) * seeds)),
                "assignment": {},
                "words": ["(its line is lost)"],
            }
            for index in range(count)
        ]


def _settings(count: int) -> str:
    return "the line of 1 setting is lost" if count == 1 else f"{count} lines of settings are lost"
