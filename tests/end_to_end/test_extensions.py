"""An installed distribution adds components, an importer, an engine, a sink and a fiddler."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

ENTRY_POINTS = """\
[luthier.components]
plain_sgd = acme_extension:plain_sgd
private = acme_extension:_private
system = acme_extension:system
core = luthier.launch:Slurm

[luthier.importers]
acme = acme_extension:AcmeWeights

[luthier.engines]
acme-site = acme_extension:AcmeSite

[luthier.sinks]
CountedEvents = acme_extension:CountedEvents

[luthier.fiddlers]
shorten = acme_extension:shorten
"""

CODE = """\
import dataclasses
from os import system
from pathlib import Path

import fiddle as fdl

from luthier import checkpoint, durations, launch, optim
from luthier.errors import CheckpointError, Problem


def plain_sgd(learning_rate: float | optim.Schedule) -> optim.Optimizer:
    \"\"\"Gradient descent without anything.

    Args:
      learning_rate: The step size.
    \"\"\"
    return optim.sgd(learning_rate, momentum=0.0)


def _private():
    pass


@dataclasses.dataclass(frozen=True)
class AcmeWeights(checkpoint.Importer):
    directory: str
    rules: tuple = (checkpoint.Take(),)

    def read_arrays(self, path):
        raise CheckpointError(Problem(f"{path} holds no weights of Acme"))


@dataclasses.dataclass(frozen=True)
class AcmeSite(launch.Here):
    queue: str = "day"


@dataclasses.dataclass(frozen=True)
class CountedEvents:
    file: str = "events.txt"

    def open(self, run_directory, report):
        if self.file == "broken":
            raise OSError("the disk of Acme is full")
        return _Counter(Path(run_directory.path, self.file))


class _Counter:
    essential = False

    def __init__(self, path):
        self.path, self.kinds = path, []

    def emit(self, event):
        self.kinds.append(type(event).__name__)

    def flush(self):
        pass

    def close(self):
        self.path.write_text(" ".join(self.kinds))


def shorten(experiment: fdl.Buildable, steps: int = 2) -> fdl.Buildable:
    experiment.training.stop = fdl.Config(durations.Steps, count=steps)
    return experiment
"""

EXPERIMENT = "configs.lm.quickstart"


def _install(folder, name="acme-extension", entry_points=ENTRY_POINTS, package="acme_extension"):
    """Lay a distribution out as an installer does."""
    (folder / package).mkdir(parents=True)
    (folder / package / "__init__.py").write_text(CODE)
    facts = folder / f"{name.replace('-', '_')}-1.0.dist-info"
    facts.mkdir()
    (facts / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (facts / "entry_points.txt").write_text(entry_points)


@pytest.fixture
def luthier(tmp_path):
    """Return a function that runs a command with the distributions of `tmp_path / "site"`."""

    def run(*words, with_site=True):
        environment = {**os.environ, "PYTHONPATH": str(tmp_path / "site") if with_site else ""}
        command = [sys.executable, "-m", "luthier", *words]
        result = subprocess.run(command, env=environment, capture_output=True, text=True)
        return result.returncode, result.stdout, result.stderr

    return run


def test_a_run_is_made_of_what_a_distribution_adds(luthier, tmp_path):
    _install(tmp_path / "site")
    runs = f"records.directory={tmp_path / 'runs'}"
    code, _, error = luthier(
        *("train", EXPERIMENT, "name=added", "--wandb", "off", "fiddler:shorten", runs),
        *("optimizer:=plain_sgd(1e-3)", "records.sinks=[CountedEvents()]", "evaluations={}"),
        "records.samples=None",
    )
    assert code == 0, error
    (run,) = (tmp_path / "runs" / "added").iterdir()
    kinds = (run / "events.txt").read_text().split()
    assert kinds.count("Step") == 2
    assert kinds[-1] == "Ended"
    # The record names the object itself, so that it does not depend on the entry point's name.
    assert "acme_extension.plain_sgd" in (run / "config.json").read_text()
    code, out, error = luthier("show", f"run:{run}")
    assert code == 0, error
    assert "acme_extension.plain_sgd" in out

    code, _, error = luthier("show", f"run:{run}", with_site=False)
    assert code == 2
    assert "'acme_extension.plain_sgd' may not be imported" in error
    assert "install the distribution that registers it (`luthier help extending`)" in error


def test_a_sink_that_does_not_open_leaves_the_run_alone(luthier, tmp_path):
    _install(tmp_path / "site")
    code, out, error = luthier(
        *("train", EXPERIMENT, "name=alone", "--wandb", "off", "fiddler:shorten", "evaluations={}"),
        *(f"records.directory={tmp_path / 'runs'}", "records.samples=None"),
        'records.sinks=[CountedEvents("broken")]',
    )
    assert code == 0, error
    assert "CountedEvents records nothing: the disk of Acme is full" in out + error


def test_everything_is_found_by_its_name(luthier, tmp_path):
    _install(tmp_path / "site")
    code, out, _ = luthier("list", "--components", "--json", "acme_extension")
    names = [entry["name"] for entry in json.loads(out)]
    assert (code, names) == (
        0,
        [
            f"acme_extension.{name}"
            for name in ("AcmeSite", "AcmeWeights", "CountedEvents", "plain_sgd")
        ],
    )
    code, out, _ = luthier("help", "plain_sgd")
    assert (code, out.splitlines()[0]) == (0, "acme_extension.plain_sgd(learning_rate)")
    code, _, error = luthier("train", EXPERIMENT, f"restore=acme:{tmp_path}", "--dry-run")
    assert code != 0
    assert f"{tmp_path} holds no weights of Acme" in error
    code, _, error = luthier("train", EXPERIMENT, "--on", "acme-site:queue=1,night=2")
    assert code == 2
    assert "acme-site has no setting 'night'" in error


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("optimizer:=plain_sdg(1e-3)",), "did you mean plain_sgd?"),
        (("restore=acmee:x",), "did you mean acme:?"),
        (("fiddler:shortn",), "did you mean fiddler:shorten?"),
        (("optimizer:=acme_extension.plain_sdg(1)",), "did you mean acme_extension.plain_sgd?"),
        # Neither what is private, nor what a package took from elsewhere, nor a part of the core.
        (("optimizer:=acme_extension._private()",), "private"),
        (("optimizer:=acme_extension.system('x')",), "it is defined in 'posix'"),
        (("optimizer:=luthier.launch.slurm.sbatch()",), "is not on the list"),
    ],
)
def test_what_is_misspelt_or_may_not_be_named(luthier, tmp_path, words, message):
    _install(tmp_path / "site")
    code, _, error = luthier("show", EXPERIMENT, *words)
    assert code == 2
    assert message in error
    assert len(error.strip().splitlines()) == 1


def test_a_name_of_two_distributions_is_refused(luthier, tmp_path):
    _install(tmp_path / "site")
    other = "[luthier.components]\nplain_sgd = other_extension:plain_sgd\n"
    _install(tmp_path / "site", "other", other, "other_extension")
    code, _, error = luthier("show", EXPERIMENT, "optimizer:=plain_sgd(1e-3)")
    assert code == 2
    assert "'plain_sgd' is defined by several distributions: acme-extension and other" in error
    assert "write acme_extension.plain_sgd or other_extension.plain_sgd" in error
    code, _, error = luthier("show", EXPERIMENT, "optimizer:=other_extension.plain_sgd(1e-3)")
    assert code == 0, error
