"""A stand-in for the wandb package, and a reader of what the real one writes."""

from __future__ import annotations

import json
import os

import pytest

FAKE = """
import io, json, os, pathlib, signal, sys, time

log = open(os.environ["FAKE_WANDB_LOG"], "a")
behaviour = os.environ.get("FAKE_WANDB", "")


def tell(call, **fields):
    print(json.dumps({"call": call, **fields}), file=log, flush=True)
    if behaviour == "chatter":
        print("look at me")
        print("look at me", file=sys.stderr)
    if behaviour == f"raise in {call}":
        raise RuntimeError(f"{call} is out of order")
    if behaviour == f"online raises in {call}" and fields.get("mode") == "online":
        raise RuntimeError("bad key")
    if behaviour == f"hang in {call}":
        time.sleep(60)
    if behaviour == f"die in {call}":
        os.kill(os.getpid(), signal.SIGKILL)


def Settings(**settings):
    return settings


class Html:
    def __init__(self, text, inject=True):
        self.text = text


class Table:
    def __init__(self, columns, data):
        self.text = data


class Artifact:
    def __init__(self, name, type, description, metadata):
        self.name, self.type, self.metadata, self.files = name, type, metadata, {}

    def new_file(self, name):
        return File(self.files, name)


class File(io.StringIO):
    def __init__(self, files, name):
        super().__init__()
        self.files, self.name = files, name

    def close(self):
        self.files[self.name] = self.getvalue()
        super().close()


class Summary(dict):
    pass


class Run:
    def __init__(self, path, id, resumed, url):
        self.dir, self.id, self.resumed, self.url = str(path), id, resumed, url
        self.step = int(os.environ.get("FAKE_WANDB_STEP", 0))
        self.summary = Summary()

    def log(self, row, step):
        row = {key: getattr(value, "text", value) for key, value in row.items()}
        tell("log", row=row, step=step)

    def define_metric(self, name, summary):
        tell("define_metric", name=name, summary=summary)

    def save(self, pattern, base_path, policy):
        pass

    def log_artifact(self, artifact):
        tell("log_artifact", **vars(artifact))

    def finish(self, exit_code):
        tell("finish", exit_code=exit_code, summary=self.summary)


def init(**options):
    environment = {key: value for key, value in os.environ.items() if key.startswith("WANDB")}
    tell("init", argv=sys.argv, environment=environment, **options)
    online = options["mode"] == "online"
    name = ("run" if online else "offline-run") + f"-{time.time_ns()}-{options['id']}"
    path = pathlib.Path(options["dir"]) / "wandb" / name / "files"
    path.mkdir(parents=True)
    resumed = online and options["resume"] == "allow" and "FAKE_WANDB_STEP" in os.environ
    return Run(path, options["id"], resumed, "https://wandb.test/run" if online else None)
"""


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch, tmp_path):
    """Nobody's key or settings decide what happens here."""
    for name in list(os.environ):
        if name.startswith("WANDB") or name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("NETRC", raising=False)


@pytest.fixture
def fake(tmp_path, monkeypatch):
    """Put the stand-in in wandb's place; returns a function that reads its calls."""
    folder = tmp_path / "fake"
    (folder / "wandb").mkdir(parents=True)
    (folder / "wandb" / "__init__.py").write_text(FAKE)
    log = tmp_path / "calls.jsonl"
    monkeypatch.setenv("PYTHONPATH", str(folder))
    monkeypatch.setenv("FAKE_WANDB_LOG", str(log))

    def calls(name=None):
        if not log.exists():
            return []
        found = [json.loads(line) for line in log.read_text().splitlines()]
        return [call for call in found if name in (None, call["call"])]

    return calls
