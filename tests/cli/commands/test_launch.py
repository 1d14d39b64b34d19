import json
import os
import pathlib
import time

import pytest

from luthier.cli import main
from luthier.cli.commands import launch

TINY = "trials.tiny"


def test_what_would_be_submitted_is_printed_and_nothing_is_written(project, capsys, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(project / "config"))
    before = sorted(project.rglob("*"))
    words = ["--on", "slurm:nodes=2,partition=gpu", "--", "train", TINY, "seed=3"]
    assert main(["launch", "--print", *words]) == 0
    out = capsys.readouterr().out
    head = "# job.sh\n# nodes = 2  [--on]\n# partition = 'gpu'  [--on]\n#!/bin/bash\n"
    assert out.startswith(head)
    assert "#SBATCH --partition=gpu\n" in out
    assert f"-m luthier train {TINY} seed=3 --distributed --join-seconds 300 & groups" in out
    assert out.endswith("# submitted by: sbatch --parsable RUN/launch/1/job.sh\n")
    assert [p for p in sorted(project.rglob("*")) if "__pycache__" not in str(p)] == [
        p for p in before if "__pycache__" not in str(p)
    ]


@pytest.mark.parametrize(
    "on", ["slurm:nodes=2", "tpu-vm:tpu=pod,zone=us-east5-a"], ids=["slurm", "tpu-vm"]
)
def test_the_time_to_wait_for_other_processes_is_the_one_given(on, project, capsys, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(project / "config"))
    words = ["--on", on, "--", "train", TINY, "--join-seconds", "900"]
    assert main(["launch", "--print", *words]) == 0
    out = capsys.readouterr().out
    assert f"train {TINY} --join-seconds 900 --distributed" in out
    assert out.count("--join-seconds") == 1


def test_the_command_for_the_machines_of_a_tpu(project, capsys, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(project / "config"))
    words = ["--on", "tpu-vm:tpu=pod,zone=us-east5-a", "--", "train", TINY]
    assert main(["launch", "--print", *words]) == 0
    line = capsys.readouterr().out.splitlines()[-1]
    assert line.startswith("gcloud compute tpus tpu-vm ssh pod --zone=us-east5-a --worker=all ")
    assert f"python3 -m luthier train {TINY} --distributed" in line


@pytest.mark.parametrize(
    ("words", "lines"),
    [
        (["--print"], ["no command to launch is given; write luthier launch --on "]),
        (["train", TINY], ["--on is missing; write --on slurm:nodes=2"]),
        (["sweep", "x", "--on", "slurm"], ["cannot launch `luthier sweep`; only `train` can be "]),
        (
            ["train", TINY, "--on", "slurm", "--all"],
            ["--list, --all and --cancel cannot be combined "],
        ),
        (
            ["--on", "slurm:nods=2", "--", "train", TINY, "--processes", "2", "sed=3"],
            [
                "slurm has no setting 'nods' [set by --on]; did you mean nodes?",
                "--processes cannot be combined with --on",
                "sed: ",
            ],
        ),
        (
            ["--on", "slurm:nodes=2", "--", "train", TINY, "--num-processes=2", "--process-id=0"],
            [
                "--num-processes cannot be combined with --on",
                "--process-id cannot be combined with --on",
            ],
        ),
        (["--cancel", "12"], ["there is no job '12' here; `luthier launch --list --all` lists "]),
    ],
)
def test_bad_input(words, lines, project, capsys, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(project / "config"))
    assert main(["launch", *words]) == 2
    errors = capsys.readouterr().err.splitlines()
    assert len(errors) == len(lines), errors
    for found, wanted in zip(errors, lines, strict=True):
        assert found.startswith(f"luthier: {wanted}")
    assert not (project / "runs").exists()


def test_a_site_that_refuses_leaves_nothing_behind(project, capsys, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(project / "config"))
    commands = project / "commands"
    commands.mkdir()
    sbatch = commands / "sbatch"
    sbatch.write_text("#!/bin/sh\necho 'sbatch: error: no such partition' >&2\nexit 1\n")
    sbatch.chmod(0o755)
    monkeypatch.setenv("PATH", f"{commands}:{os.environ['PATH']}")
    errors = "luthier: cannot submit job.sh: sbatch: error: no such partition\n"
    assert main(["train", TINY, "--on", "slurm:partition=gpus"]) == 2
    assert capsys.readouterr().err == errors
    assert list((project / "runs" / "tiny").iterdir()) == []
    (commands / "sbatch").write_text("#!/bin/sh\necho 12\n")
    assert main(["train", TINY, "--on", "slurm"]) == 0
    (run,) = (project / "runs" / "tiny").iterdir()
    sbatch.write_text("#!/bin/sh\necho 'sbatch: error: no such partition' >&2\nexit 1\n")
    capsys.readouterr()
    assert main(["train", TINY, "--on", "slurm:partition=gpus", "--run", run.name]) == 2
    assert capsys.readouterr().err == errors
    assert [path.name for path in (run / "launch").iterdir()] == ["1"]  # what was there stays
    assert (run / "config.json").exists()


def test_no_jobs_here(project, capsys):
    assert main(["launch"]) == 0
    out = capsys.readouterr().out
    assert out == "no job is queued or running; --all lists finished jobs, too\n"


@pytest.mark.full
@pytest.mark.timeout(300)
def test_a_run_is_launched_listed_and_its_script_is_kept(project, capsys, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(project / "config"))
    words = ["--on", "local", "--wandb", "off", "--devices", "nothing"]
    assert main(["train", TINY, *words]) == 0
    (run,) = (project / "runs" / "tiny").iterdir()
    first, second = capsys.readouterr().out.splitlines()
    assert first.startswith(f"run tiny/{run.name} is job ")
    assert first.endswith(" of local; `luthier launch` shows its state")
    assert second == f"script and logs: {run}/launch/1"
    assert (
        f"train {TINY} --wandb off --devices nothing --run {run.name}"
        in (run / "launch" / "1" / "job.sh").read_text()
    )
    deadline = time.monotonic() + 200
    while not (run / "launch" / "1" / "tiny.exit").exists() and time.monotonic() < deadline:
        time.sleep(0.2)
    assert main(["launch", "--all", "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert (row["engine"], row["state"], row["detail"]) == ("local", "failed", "exit code 2")
    assert pathlib.Path(row["of"]) == run
    assert main(["launch", "--all"]) == 0
    assert "local   failed  exit code 2" in capsys.readouterr().out
    log = (run / "launch" / "1" / "logs" / "tiny-rank-0.log").read_text()
    assert "cannot read 'nothing'" in log


def test_options_that_choose_the_engine_are_not_passed_on():
    words = ["a", "--on", "slurm", "x=1", "--on=ray", "--new", "--run", "3"]
    assert launch._words(words) == ["a", "x=1", "--run", "3"]


def test_the_slices_of_a_study_run_where_the_command_line_and_the_files_say(tmp_path, monkeypatch):
    import fiddle as fdl

    from luthier import graph as graphs
    from luthier import study as studies
    from luthier.launch import Slices, Slurm

    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pyproject.toml").write_text("[tool.luthier]\n")
    (tmp_path / "launch.toml").write_text('[slurm]\naccount = "lab"\nnodes = 8\nslices = 3\n')
    study = fdl.Config(studies.Study, name="toy", engine=fdl.Config(studies.Local, 2))
    assert launch.with_engine(study, None) is study
    found = launch.with_engine(study, "slurm:nodes=2")
    assert graphs.build(graphs.get(found, "engine.on")) == Slurm(nodes=2, account="lab")
    assert graphs.get(found, "engine.slices") == 3
    assert graphs.get(found, "engine.on.account") == "lab"
    assert graphs.origin_of(found, "engine.on.nodes").startswith("--on")
    assert graphs.origin_of(found, "engine.on.account") == f"[slurm] in {tmp_path}/launch.toml"
    again = graphs.from_json(graphs.to_json(graphs.get(found, "engine")))
    assert isinstance(graphs.build(again), Slices)
    own = fdl.Config(
        studies.Study, name="toy", engine=fdl.Config(Slices, fdl.Config(Slurm, nodes=4))
    )
    filled = launch.with_engine(own, None)
    assert graphs.build(graphs.get(filled, "engine.on")) == Slurm(nodes=4, account="lab")
    assert graphs.get(own, "engine.on").__arguments__ == {"nodes": 4}
