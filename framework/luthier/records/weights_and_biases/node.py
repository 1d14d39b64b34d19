"""The node that mirrors runs in Weights & Biases, and whether its server can be reached.

The mirror is a process of its own that follows metrics.jsonl, so that wandb can neither block nor
crash training.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import netrc
import os
import pathlib
import socket
import subprocess
import sys
import threading
import urllib.parse
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import IO, Any, ClassVar, Literal, NamedTuple

from luthier.errors import Problem, RunError
from luthier.records.directory import RunDirectory
from luthier.records.events import Event
from luthier.records.redaction import write_json
from luthier.storage import read_json

_SERVER = "https://api.wandb.ai"


def server(environment: Mapping[str, str] = os.environ) -> str:
    """Return the address of the W&B server.

    Args:
      environment: Environment variables.
    """
    return environment.get("WANDB_BASE_URL") or _SERVER


def has_key(environment: Mapping[str, str] = os.environ) -> bool:
    """Return whether there are credentials for the server; whether they are right is not tried.

    Args:
      environment: Environment variables.
    """
    if environment.get("WANDB_API_KEY") or environment.get("WANDB_IDENTITY_TOKEN_FILE"):
        return True
    # As wandb itself looks for a key: the environment first, then netrc under the server's name.
    host = urllib.parse.urlsplit(server(environment)).hostname or ""
    named = environment.get("NETRC")
    home = pathlib.Path(environment.get("HOME") or pathlib.Path.home())
    for path in [pathlib.Path(named)] if named else [home / ".netrc", home / "_netrc"]:
        try:
            if netrc.netrc(path).hosts.get(host) is not None:
                return True
        except (OSError, netrc.NetrcParseError):
            continue
    return False


def is_reachable(environment: Mapping[str, str] = os.environ, seconds: float = 3.0) -> bool:
    """Return whether the server, or the proxy on the way to it, takes a connection.

    Args:
      environment: Names the server and the proxy.
      seconds: Longest wait for the connection.
    """
    address = urllib.parse.urlsplit(server(environment))
    lower = {name.lower(): value for name, value in environment.items()}
    proxy = lower.get(f"{address.scheme}_proxy") or lower.get("all_proxy")
    if proxy and not _bypasses(address.hostname or "", lower.get("no_proxy", "")):
        address = urllib.parse.urlsplit(proxy if "://" in proxy else f"http://{proxy}")
    port = address.port or (443 if address.scheme == "https" else 80)
    try:
        # A connection and not a request: it fails at once where there is no network, whereas wandb
        # would retry for minutes; whether the key is right, wandb finds out itself.
        with socket.create_connection((address.hostname or "", port), timeout=seconds):
            return True
    except (OSError, UnicodeError):
        return False


def _bypasses(host: str, no_proxy: str) -> bool:
    # The convention of curl and requests: a name also stands for the names below it, and `*` for
    # all.
    names = [name.strip().lstrip(".") for name in no_proxy.split(",") if name.strip()]
    return any(name == "*" or host == name or host.endswith("." + name) for name in names)


def choose_mode(mode: str, environment: Mapping[str, str] = os.environ) -> tuple[str, str]:
    """Return `online` or `offline`, and why it is offline where that was not asked for.

    Args:
      mode: `auto`, `online` or `offline`.
      environment: Names the server, the proxy and the key.
    """
    if mode != "auto":
        return mode, ""
    if not has_key(environment):
        return "offline", "no API key"
    if not is_reachable(environment):
        return "offline", f"{server(environment)} cannot be reached"
    return "online", ""


# The run's mirror in Weights & Biases, kept by a process of its own that follows metrics.jsonl.
#
# Training never calls wandb: a second process reads the lines that training writes anyway. So W&B
# can neither slow nor stop training, whatever it does; a training process that is killed loses
# nothing of the mirror; and rebuilding a mirror is the same program, started on a finished file.

MODES = ("auto", "online", "offline", "off")
SETTINGS_FILE = "wandb.json"
PATIENCE_SECONDS = 30.0  # for the mirror of a process that was killed to finish
_abandoned: list[subprocess.Popen[bytes]] = []  # still uploading when training had ended


class Mirrored(NamedTuple):
    """The place of a mirror: `mode` is `online` or `offline`; `url` is empty offline."""

    mode: str
    path: str
    url: str


@dataclasses.dataclass(frozen=True)
class Wandb:
    """The mirror of a run in Weights & Biases.

    Args:
      project: The W&B project.
      entity: The user or team; None is the key's own.
      name: The run's name in W&B; None is `<name>/<id>`.
      group: Runs of one group are shown together.
      job_type: Role of the run within its group.
      notes: A longer description.
      tags: Labels to filter by.
      config: Further entries of the run's config in W&B, beside those of the experiment.
      mode: `auto` is online where there are a key and a network, else offline; `online`, `offline`,
        `off`. The environment's WANDB_MODE decides what `auto` is.
      system_metrics: Whether W&B samples the usage of processors, memory and disks.
      finish_seconds: Longest wait for the upload when training ends; it then continues in the
        background.
    """

    RANGES: ClassVar[dict[str, str]] = {"finish_seconds": "0 <= x"}

    project: str = "luthier"
    entity: str | None = None
    name: str | None = None
    group: str | None = None
    job_type: str | None = None
    notes: str | None = None
    tags: tuple[str, ...] = ()
    config: Mapping[str, Any] | None = None
    mode: Literal["auto", "online", "offline", "off"] = "auto"
    system_metrics: bool = True
    finish_seconds: float = 60.0

    def open(
        self, run_directory: RunDirectory, report: Callable[[str], None]
    ) -> WandbSink | SharedSink | None:
        """Start the mirror of a run, or return None when it is off.

        Args:
          run_directory: The run's directory.
          report: Is given one line about anything that the user should know; from any thread.

        Returns:
          The sink, or None.

        Raises:
          RunError: `mode` is unknown.
        """
        if resolved_mode(self.mode) == "off":
            return None
        if _shared is not None:
            return _shared.open(self, run_directory, report)
        return WandbSink(self, run_directory, report)


def resolved_mode(mode: str, environment: Mapping[str, str] | None = None) -> str:
    """Return the mode with the environment's wishes in it: `auto`, `online`, `offline` or `off`.

    Raises:
      RunError: The mode is unknown.
    """
    if mode not in MODES:
        remedy = f"use one of {', '.join(MODES)}"
        raise RunError(Problem(f"{mode!r} is not a mode", path="records.wandb.mode", remedy=remedy))
    if mode != "auto":
        return mode
    # The variables of wandb itself: who has switched it off for a machine should not have to learn
    # ours.
    environment = os.environ if environment is None else environment
    if environment.get("WANDB_DISABLED", "").lower() in ("1", "true", "yes", "on"):
        return "off"
    wish = environment.get("WANDB_MODE", "").lower()
    return {"offline": "offline", "dryrun": "offline", "online": "online", "run": "online",
            "disabled": "off"}.get(wish, "auto")  # fmt: skip


class WandbSink:
    """Keeps the mirror's process, which reads the JSON lines itself: `emit` has nothing to do."""

    essential = False

    def __init__(self, node: Wandb, run_directory: RunDirectory, report: Callable[[str], None]):
        self._node = node
        self._report = report
        self._run = run_directory
        self._process: subprocess.Popen[bytes] | None = None
        self._failed = False
        try:
            write_settings(node, run_directory)
            self._process = _start(run_directory, resolved_mode(node.mode), subprocess.PIPE)
        except (OSError, RunError) as error:
            self._report(f"W&B is off: {error}; training continues")
            return
        self._reader = threading.Thread(target=self._read, name="luthier-wandb", daemon=True)
        self._reader.start()

    def emit(self, event: Event) -> None:
        """Do nothing: the process follows metrics.jsonl."""

    def flush(self) -> None:
        """Do nothing: the process follows metrics.jsonl."""

    def close(self) -> None:
        """Let the process finish, waiting for it no longer than `finish_seconds`."""
        process = self._process
        if process is None:
            return
        # `_read` takes the end of the process for a failure as long as this is set.
        self._process = None
        assert process.stdin is not None
        with contextlib.suppress(OSError):
            # The end of its input is the signal to finish: it then reads the rest of metrics.jsonl
            # and uploads. Training that has ended must not wait for a slow network for longer than
            # `finish_seconds`, so a process that is not done stays behind; the reference in
            # `_abandoned` keeps the destructor of Popen from warning about it.
            process.stdin.close()
        try:
            process.wait(self._node.finish_seconds)
        except subprocess.TimeoutExpired:
            _abandoned.append(process)
            self._report(
                f"W&B is not done after {self._node.finish_seconds:.0f} s: process {process.pid}"
                f" continues in the background; {_remedy(self._run)} repeats it"
            )
            return
        # Its last message may be the reason why it failed. With a limit, as for all that training
        # waits for here.
        self._reader.join(5.0)
        if process.returncode and not self._failed:
            self._fail(_exit_reason(process.returncode))

    def _read(self) -> None:
        """Pass on the messages of the process."""
        process = self._process
        assert process is not None
        assert process.stdout is not None
        with process.stdout:
            for line in process.stdout:
                message = _message(line)
                if message.get("failed"):
                    self._fail(message["failed"])
                elif message.get("notice"):
                    self._report(f"W&B: {message['notice']}")
        if self._process is not None and not self._failed:
            # It ended while training continues.
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._fail(_exit_reason(process.wait(10.0)))

    def _fail(self, reason: str) -> None:
        if not self._failed:
            self._failed = True
            self._report(
                f"W&B stopped: {reason}; training continues; {_remedy(self._run)} makes up for it"
            )


# One process for many runs: the worker of a sweep trains trials of a few seconds, one after another
# or packed. To import wandb, and to start and end its service, took 5 s of a device group for each
# of them, and a quarter of the processor time of the sweep; a further run in a process that has all
# of that takes 0.05 s.

_shared: MirrorProcess | None = None  # that of this process, inside of `shared_mirrors`


@contextlib.contextmanager
def shared_mirrors() -> Iterator[None]:
    """Mirror all runs of this process by one other process, which no run waits for at its end.

    Leaving the block waits until all are uploaded, no longer than the longest `finish_seconds`.

    Yields:
      Nothing.
    """
    global _shared
    _shared = mirrors = MirrorProcess()
    try:
        yield
    finally:
        _shared = None
        mirrors.close()


class MirrorProcess:
    """A process that mirrors runs, started with the first one, and again where it died."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._reader: threading.Thread | None = None
        self._lock = threading.Lock()
        self._sinks: dict[int, SharedSink] = {}  # of mirrors that are not done
        self._num_opened = 0
        self._finish_seconds = 0.0
        self._closing = False

    def open(
        self, node: Wandb, run_directory: RunDirectory, report: Callable[[str], None]
    ) -> SharedSink | None:
        """Begin the mirror of a run; return None, and report it, where that cannot be.

        Args:
          node: Its settings.
          run_directory: The run's directory.
          report: Is given one line about anything that the user should know; from any thread.
        """
        try:
            write_settings(node, run_directory)
            (run_directory.path / "wandb").mkdir(exist_ok=True)
            with self._lock:
                self._num_opened += 1
                sink = SharedSink(self, self._num_opened, run_directory, report)
                if self._process is None:
                    self._start(run_directory)
                self._finish_seconds = max(self._finish_seconds, node.finish_seconds)
                self._sinks[sink.key] = sink
                mode, path = resolved_mode(node.mode), str(run_directory.path.resolve())
                self._send(begin=sink.key, run=path, mode=mode)
        except (OSError, RunError) as error:
            report(f"W&B is off: {error}; training continues")
            return None
        return sink

    def end(self, key: int) -> None:
        """Have the rest of a run taken in; its training is over."""
        # A process that has died has reported that for each of its runs.
        with self._lock, contextlib.suppress(OSError):
            if key in self._sinks:
                self._send(end=key)

    def close(self) -> None:
        """Let all mirrors finish, waiting for them no longer than `finish_seconds`."""
        with self._lock:
            process, self._closing = self._process, True
            if process is None:
                return
            assert process.stdin is not None
            with contextlib.suppress(OSError):
                process.stdin.close()
        try:
            process.wait(self._finish_seconds)
        except subprocess.TimeoutExpired:
            _abandoned.append(process)
            with self._lock:
                left, self._sinks = list(self._sinks.values()), {}
            for sink in left:
                sink.report(
                    f"W&B is not done after {self._finish_seconds:.0f} s: process {process.pid}"
                    f" continues in the background; {_remedy(sink.run)} repeats it"
                )
            return
        if self._reader is not None:
            self._reader.join(5.0)

    def _start(self, run_directory: RunDirectory) -> None:
        arguments = ["--process", str(os.getpid()), "--patience", str(PATIENCE_SECONDS)]
        folder = run_directory.path / "wandb"
        # What wandb prints goes where this process prints, for it is about many runs.
        self._process = start_process("mirror", arguments, folder, subprocess.PIPE, log=sys.stderr)
        self._reader = threading.Thread(
            target=self._read, args=(self._process,), name="luthier-wandb", daemon=True
        )
        self._reader.start()

    def _send(self, **message: Any) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(message).encode() + b"\n")
        self._process.stdin.flush()

    def _read(self, process: subprocess.Popen[bytes]) -> None:
        """Pass on the messages of the process; where it dies, report that for each of its runs."""
        assert process.stdout is not None
        with process.stdout:
            for line in process.stdout:
                message = _message(line)
                sink = self._sinks.get(message.get("key", 0))
                if sink is None:
                    continue
                if message.get("failed"):
                    sink.fail(message["failed"])
                elif message.get("notice"):
                    sink.report(f"W&B: {message['notice']}")
                if message.get("failed") or message.get("done"):
                    del self._sinks[sink.key]
        with self._lock:
            left, self._sinks = list(self._sinks.values()), {}
            if not self._closing:
                self._process = None  # the next run starts another
                assert process.stdin is not None
                with contextlib.suppress(OSError):  # what it did not read
                    process.stdin.close()
        reason = _exit_reason(process.wait())
        for sink in left:
            sink.fail(reason)


class SharedSink:
    """The mirror of one run among those of a `MirrorProcess`."""

    essential = False

    def __init__(
        self,
        mirrors: MirrorProcess,
        key: int,
        run_directory: RunDirectory,
        report: Callable[[str], None],
    ):
        self.key, self.run = key, run_directory
        self._mirrors, self._report = mirrors, report
        self._is_closed = False

    def emit(self, event: Event) -> None:
        """Do nothing: the process follows metrics.jsonl."""

    def flush(self) -> None:
        """Do nothing: the process follows metrics.jsonl."""

    def close(self) -> None:
        """Have the rest of the run taken in, without waiting for it."""
        self._is_closed = True
        self._mirrors.end(self.key)

    def report(self, text: str) -> None:
        """Report a line in the run's own record, and after its end where this process prints."""
        if self._is_closed:
            print(f"{self.run.path}: {text}", file=sys.stderr, flush=True)
        else:
            self._report(text)

    def fail(self, reason: str) -> None:
        """Report that the mirror has failed."""
        self.report(
            f"W&B stopped: {reason}; training continues; {_remedy(self.run)} makes up for it"
        )


def _remedy(run_directory: RunDirectory) -> str:
    return f"`luthier runs {run_directory.id} --sync wandb`"


def _exit_reason(code: int) -> str:
    return f"its process was ended by signal {-code}" if code < 0 else f"its process ended ({code})"


def _message(line: bytes) -> dict[str, Any]:
    try:
        message = json.loads(line)
    except ValueError:
        return {}
    return message if isinstance(message, dict) else {}


def write_settings(node: Wandb, run_directory: RunDirectory) -> None:
    """Write wandb.json, the settings of the process; a run keeps its W&B id for good."""
    path = run_directory.path / SETTINGS_FILE
    earlier = read_json(path, default={})
    settings = dataclasses.asdict(node)
    settings["tags"] = list(node.tags)
    settings["name"] = node.name or f"{run_directory.name}/{run_directory.id}"
    # Kept for good: a restart, and a sync from another machine, continue the same W&B run.
    settings["id"] = earlier.get("id") or os.urandom(4).hex()
    write_json(path, settings)


def _start(run_directory: RunDirectory, mode: str, stdin: int) -> subprocess.Popen[bytes]:
    """Start the process that mirrors; it ends when its standard input does."""
    arguments = [str(run_directory.path.resolve()), "--mode", mode, "--process", str(os.getpid())]
    arguments += ["--patience", str(PATIENCE_SECONDS)]
    return start_process("mirror", arguments, run_directory.path / "wandb", stdin)


def start_process(
    module: str,
    arguments: Sequence[str],
    folder: pathlib.Path,
    stdin: int,
    log: IO[Any] | None = None,
) -> subprocess.Popen[bytes]:
    """Start a process of this package, which may import wandb.

    Args:
      module: Its module.
      arguments: Its command line.
      folder: Where it works and keeps its log, `mirror.log`.
      stdin: Its standard input, as for `Popen`.
      log: Takes what it prints, instead of `mirror.log`.
    """
    if not sys.executable:
        raise RunError(Problem("this Python has no executable to start a process with"))
    folder.mkdir(parents=True, exist_ok=True)
    # WANDB_SERVICE names the socket of a wandb service of this process: the mirror's run would end
    # with it.
    environment = {name: value for name, value in os.environ.items() if name != "WANDB_SERVICE"}
    root = str(pathlib.Path(__file__).resolve().parents[3])
    inherited = environment.get("PYTHONPATH")
    environment["PYTHONPATH"] = os.pathsep.join([root, inherited] if inherited else [root])
    environment |= {"WANDB_SILENT": "true", "WANDB_CONSOLE": "off", "PYTHONUNBUFFERED": "1"}
    environment.setdefault("WANDB_ERROR_REPORTING", "false")
    environment.pop("PYTHONWARNINGS", None)
    with contextlib.ExitStack() as stack:
        output = log or stack.enter_context(open(folder / "mirror.log", "ab"))
        return subprocess.Popen(
            # `-P`: the working directory is a folder called `wandb` within the run, and must not be
            # searched for modules.
            [
                sys.executable,
                "-P",
                # Of the package, which imports the module before it is run.
                "-W",
                "ignore::RuntimeWarning:runpy",
                "-m",
                f"luthier.records.weights_and_biases.{module}",
                *arguments,
            ],
            cwd=folder,
            env=environment,
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=output,
            start_new_session=True,  # Ctrl-C is for training
        )


def rebuild(
    run_directory: RunDirectory, mode: str = "auto", wandb: Wandb | None = None
) -> Mirrored:
    """Make a run's mirror anew from its JSON lines, and wait until it is done.

    Offline, the run's earlier offline files are replaced by one that holds just what the JSON lines
    hold. Online, W&B keeps rows that it already has, and is given those that it lacks.

    Args:
      run_directory: The run.
      mode: `auto`, `online` or `offline`.
      wandb: Settings of the mirror; None keeps those of the run, or the defaults.

    Returns:
      Where the mirror is.

    Raises:
      RunError: It cannot be done; the message says why.
    """
    mode = resolved_mode(mode)
    if mode == "off":
        remedy = "give it a mode: online or offline"
        raise RunError(Problem("W&B is switched off in the environment", remedy=remedy))
    if wandb is not None or not (run_directory.path / SETTINGS_FILE).exists():
        write_settings(wandb or Wandb(), run_directory)
    # The mode is that of the call and not of the settings, so that a run which was mirrored offline
    # can be uploaded. An input that has ended means that training has: the process reads the lines
    # there are, and finishes.
    try:
        process = _start(run_directory, mode, subprocess.DEVNULL)
    except OSError as error:
        raise RunError(Problem(f"cannot start the mirror: {error}")) from error
    what = f"W&B cannot mirror {run_directory.path}"
    return end_process(process, what, run_directory.path / "wandb")


def end_process(process: subprocess.Popen[bytes], what: str, folder: pathlib.Path) -> Mirrored:
    """Wait for a process of this package; return the place of the mirror that it reported.

    Args:
      process: The process, from `start_process`.
      what: Beginning of the error message.
      folder: Where its log is.

    Raises:
      RunError: It failed; the message says why.
    """
    with process:
        assert process.stdout is not None
        messages = [_message(line) for line in process.stdout]
    where: Mirrored | None = None
    for message in messages:
        if "mode" in message:
            where = Mirrored(message["mode"], message.get("path", ""), message.get("url", ""))
    failed = [message["failed"] for message in messages if message.get("failed")]
    if process.returncode or failed or where is None:
        reason = failed[0] if failed else _exit_reason(process.returncode)
        raise RunError(Problem(f"{what}: {reason}", remedy=f"see {folder / 'mirror.log'}"))
    return where
