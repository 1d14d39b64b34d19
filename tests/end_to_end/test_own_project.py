"""A project of one's own, with luthier installed from a wheel and this repository out of reach."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import sysconfig
import time
import venv
import zipfile
from pathlib import Path

import pytest
import yaml

from tests import object_stores

ROOT = Path(__file__).resolve().parents[2]
TRAIN = ["train", "configs.addition", "--wandb", "off", "checkpoints.every.count=10"]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    """The wheel of this checkout, built without a network."""
    source = tmp_path_factory.mktemp("source")
    ignored = shutil.ignore_patterns("__pycache__", "*.egg-info")
    shutil.copytree(ROOT / "framework", source / "framework", ignore=ignored)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source / name)
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", str(source)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    (wheel,) = (source / "dist").glob("*.whl")
    return wheel


@pytest.mark.full
def test_the_wheel_holds_the_package_its_experiments_and_the_template_only(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    package = ROOT / "framework" / "luthier"
    files = [p for p in package.rglob("*") if p.is_file() and "__pycache__" not in p.parts]
    expected = {p.relative_to(package.parent).as_posix() for p in files}
    for folder in ("configs", "sweeps"):
        modules = (ROOT / folder).rglob("*.py")
        expected |= {f"luthier/shipped/{p.relative_to(ROOT).as_posix()}" for p in modules}
    docs = ROOT / "docs"
    expected |= {f"luthier/pages/{p.relative_to(docs).as_posix()}" for p in docs.rglob("*.md")}
    # Python 3.13 follows the links to these folders, which hold other files as well.
    held = {name for name in names if ".dist-info/" not in name}
    others = re.compile(r"luthier/(shipped/.*\.md|pages/.*(?<!\.md))")
    assert held == {name for name in expected if not others.fullmatch(name)}
    assert any(name.endswith("licenses/LICENSE") for name in names)


@pytest.mark.full
def test_the_experiments_of_the_wheel_are_found_from_an_empty_folder(wheel, tmp_path):
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "installed")
    empty = tmp_path / "empty"
    empty.mkdir()

    def run(*words):
        # A folder that is first on PYTHONPATH hides the clone that tests run in.
        environment = {**os.environ, "PYTHONPATH": str(tmp_path / "installed")}
        command = [sys.executable, "-m", "luthier", *words]
        done = subprocess.run(
            command, cwd=empty, env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert "configs.lm.quickstart " in run("list", "quickstart")
    assert "name = 'quickstart'" in run("show", "quickstart")
    assert run("help", "overrides").startswith("# Overrides\n")
    assert "name = 'pax-1b'" in run("show", "configs.lm.pax_c4")  # as it was called before
    short = ["training.steps=2", "model.num_layers=1", "evaluations={}", "--wandb", "off"]
    assert "step 2/2" in run("train", "quickstart", *short)
    study = ["lm_learning_rate", "--trials", "2", *(f"base.{w}" for w in short[:2])]
    assert "lm_learning_rate: 2 of 2 trials ended" in run("sweep", *study)


@pytest.mark.full
def test_a_project_that_starts_from_an_experiment_passes_its_own_ci(wheel, tmp_path):
    installed, folder = tmp_path / "installed", tmp_path / "fretwork"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(installed)
    environment = {**os.environ, "PYTHONPATH": str(installed)}

    def run(command, cwd=folder):
        done = subprocess.run(
            command, cwd=cwd, env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    luthier = [sys.executable, "-m", "luthier"]
    run([*luthier, "init", "fretwork", "--from", "quickstart"], cwd=tmp_path)
    assert "configs.quickstart" in run([*luthier, "list", "quickstart"])
    workflow = yaml.safe_load((folder / ".github" / "workflows" / "ci.yml").read_text())
    steps = workflow["jobs"]["test"]["steps"]
    commands = [shlex.split(step["run"]) for step in steps if "run" in step]
    assert [words[0] for words in commands] == ["pip", "luthier", "pytest"]
    # Without a network, and not into the environment of this test.
    pip = ["-m", "pip", "install", "-q", "--no-deps", "--no-index", "--no-build-isolation"]
    run([sys.executable, *pip, "--target", str(tmp_path / "theirs"), "."])
    assert (tmp_path / "theirs" / "fretwork" / "layers.py").is_file()
    checked = run([*luthier, *commands[1][1:]])
    for name in ("configs.quickstart", "configs.addition:wide", "sweeps.learning_rate"):
        assert re.search(rf"^{re.escape(name)} +ok ", checked, re.MULTILINE), checked
    assert "6 passed" in run([sys.executable, "-m", "pytest", "-p", "no:cacheprovider"])
    study = ["sweep", "sweeps.learning_rate", "--trials", "2", "base.training.steps=12"]
    out = run([*luthier, *study, "base.model.num_layers=1", "base.records.wandb=None"])
    assert "learning_rate: 2 of 2 trials ended" in out


@pytest.mark.slow
def test_train_kill_resume_evaluate_generate(wheel, tmp_path):
    installed = tmp_path / "installed"
    install = ["-m", "pip", "install", "-q", "--no-deps", "--no-index", "--target"]
    subprocess.run([sys.executable, *install, str(installed), str(wheel)], check=True)
    environment = {**os.environ, "PYTHONPATH": str(installed)}
    folder = tmp_path / "fretwork"

    def start(*words, cwd=folder):
        command = [sys.executable, "-m", "luthier", *words]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        return subprocess.Popen(command, cwd=cwd, env=environment, **pipes)

    def run(*words, cwd=folder):
        process = start(*words, cwd=cwd)
        out, _ = process.communicate()
        assert process.returncode == 0, out
        return out

    where = "import luthier; print(luthier.__file__)"
    result = subprocess.run(
        [sys.executable, "-c", where], env=environment, cwd=tmp_path, capture_output=True, text=True
    )
    assert result.stdout.startswith(str(installed))
    run("init", "fretwork", cwd=tmp_path)
    assert "configs.addition" in run("list")
    assert "fretwork.layers.SquaredReluMlp" in run("show", "configs.addition")

    training = start(*TRAIN)
    deadline = time.monotonic() + 300
    while not list(folder.glob("runs/addition/*/checkpoints/20*")):
        assert training.poll() is None, training.stdout.read()
        assert time.monotonic() < deadline
        time.sleep(0.1)
    training.send_signal(signal.SIGKILL)
    training.communicate()

    assert "finished at step 800" in run(*TRAIN)
    (record,) = folder.glob("runs/addition/*/metrics.jsonl")
    lines = [json.loads(line) for line in record.read_text().splitlines()]
    steps = [line["step"] for line in lines if line.get("kind", line.get("event")) == "step"]
    assert steps == list(range(1, 801))

    evaluated = json.loads(run("evaluate", "last", "--json"))
    assert evaluated["evaluations"]["held_out"]["answer_accuracy"] > 0.95
    assert run("generate", "last", "--prompt", "3+4=", "--temperature", "0").startswith("3+4=7")


# Modules that hide those of the clients of object stores which other programs use.
HIDDEN = 'raise ImportError(f"{__name__} is not installed")\n'


@pytest.fixture
def fresh(wheel, tmp_path):
    """Return the command of a fresh environment with the wheel, and the libraries of this one."""
    venv.create(tmp_path / "venv", with_pip=False)
    (packages,) = (tmp_path / "venv" / "lib").glob("python*/site-packages")
    into = ["--python", str(tmp_path / "venv" / "bin" / "python")]
    install = ["install", "-q", "--no-deps", "--no-index", str(wheel)]
    subprocess.run([sys.executable, "-m", "pip", *into, *install], check=True)
    (packages / "libraries.pth").write_text(sysconfig.get_path("purelib") + "\n")
    for name in ("gcsfs", "s3fs"):
        (packages / f"{name}.py").write_text(HIDDEN)
    return [str(tmp_path / "venv" / "bin" / "luthier")]


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["gs", "s3"])
def test_the_command_of_pax_trains_in_a_bucket_and_its_run_is_read_elsewhere(
    fresh, tmp_path, scheme
):
    objects, process = {}, []

    def kill(key):
        if process and re.search(r"/checkpoints/6\..*/commit.json$", key):
            process.pop().kill()
            return 503
        return None

    with object_stores.serving({"lab": objects}, before_write=kill) as (address, _):

        def start(machine, *words):
            """Start a command on a machine that has nothing but the environment."""
            folder = tmp_path / machine
            folder.mkdir(exist_ok=True)
            own = {"HOME": str(folder), "XDG_CACHE_HOME": str(folder / "cache")}
            kept = {"PATH": os.environ["PATH"], **object_stores.environment(address), **own}
            pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
            return subprocess.Popen([*fresh, *words], cwd=folder, env=kept, **pipes)

        def run(machine, *words):
            done = start(machine, *words)
            out, errors = done.communicate()
            assert done.returncode == 0, errors
            return out

        python = [str(Path(fresh[0]).parent / "python"), "-m", "luthier.shipped.c4_shards"]
        subprocess.run([*python, str(tmp_path / "c4")], check=True, cwd=tmp_path)
        home = f"{scheme}://lab/run"
        command = ["train", "--exp=C4Spmd1BAdam4Replicas", "--fiddler", "tiny"]
        command += ["--fiddler", f'shared(folder="{tmp_path}/c4")', "--devices", "cpu:8"]
        command += [f"--job_log_dir={home}", "checkpoints.every.count=2"]
        training = start("first", *command)
        process.append(training)
        training.communicate()
        assert training.returncode == -signal.SIGKILL
        out = run("second", *command)
        assert re.search(r"resumed at step +4\n", out), out
        assert re.search(rf"run +{home}/pax-1b-tiny/", out)
        assert "finished at step 10" in out
        (key,) = (key for key in objects if key.endswith("/status.json"))
        url = f"{scheme}://lab/{key.removesuffix('/status.json')}"
        id = url.rpartition("/")[2]
        (listed,) = json.loads(run("third", "runs", home, "--json"))
        assert (listed["id"], listed["path"], listed["status"]) == (id, url, "finished")
        assert "finished" in run("third", "runs", url)
        assert "name = 'pax-1b-tiny'" in run("third", "show", f"run:{url}")
        assert "parallelism" in run("third", "diff", f"run:{url}", "configs.pax.c4")
        refused = start("third", "export", url)
        assert "exports are written to a disk; name a folder" in refused.communicate()[1]
        devices = ["--devices", "cpu:8"]
        evaluated = json.loads(run("third", "evaluate", url, *devices, "--json"))
        assert evaluated["evaluations"]["validation"]["loss"] > 0
        assert run("third", "generate", url, "--prompt", "1 2 3", *devices)
        run("third", "export", url, "--output", "exported", "--family", "luthier")
        assert list((tmp_path / "third" / "exported").glob("*.safetensors"))
        rows = b"".join(
            objects[key] for key in sorted(objects) if "/metrics.jsonl.segments/" in key
        ).splitlines()
        steps = [row["step"] for row in map(json.loads, rows) if row["kind"] == "step"]
        assert steps == list(range(1, 11))
