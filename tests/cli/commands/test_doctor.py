import dataclasses
import json
import os
import pathlib
import subprocess
import sys
import types

import pytest

from luthier import parallel
from luthier.cli import main
from luthier.cli.commands import doctor as commands
from luthier.launch import Job, Resources, Standing, doctor, settings

REPOSITORY = pathlib.Path(__file__).resolve().parents[3]
WELL = doctor.Examination(
    0, "n0", "8 x cpu", 1.5e14, 7e11, 9.125e10, 5e8, 6.5e8, True, 0.0, 0.0
)  # fmt: skip
COMMAND = ("-m", "luthier", "doctor", "--devices", "cpu:4", "--processes", "2", "--json")
LATE = dataclasses.replace(
    WELL, process=1, host="n1", clock_skew_seconds=2.5, clock_uncertainty_seconds=0.0004
)


@pytest.fixture
def hosts(monkeypatch, tmp_path):
    found, asked = [WELL, LATE], []

    def examine(directory):
        asked.append(directory)
        return found

    monkeypatch.setattr(doctor, "examine", examine)
    return asked


def test_the_table_and_the_findings_are_printed(hosts, capsys):
    assert main(["doctor", "--directory", "elsewhere"]) == 0
    versions, *table, last = capsys.readouterr().out.splitlines()
    assert hosts == ["elsewhere"]
    assert versions.startswith("Python 3.")
    assert ", jax " in versions
    assert table == [
        "process  host  devices  matmul TFLOP/s  memory GB/s  all-reduce GB/s  disk write MB/s  "
        "disk read MB/s  clock ms",
        "      0  n0    8 x cpu             150          700            91.25              500  "
        "           650  0",
        "      1  n1    8 x cpu             150          700            91.25              500  "
        "           650  +2500.0 (up to 0.4 off)",
    ]
    assert last == "process 1 on n1: its clock is 2.5 s ahead of that of process 0"


def test_json_holds_all_of_it(hosts, capsys):
    assert main(["doctor", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert set(report) == {"versions", "hosts", "findings", "fiddler"}
    assert report["fiddler"] == ""  # of a CPU
    assert report["hosts"][1]["clock_skew_seconds"] == 2.5
    assert report["hosts"][0]["all_reduce_bytes"] == 9.125e10
    assert len(report["findings"]) == 1


def test_no_findings_are_reported_too(hosts, monkeypatch, capsys):
    monkeypatch.setattr(doctor, "examine", lambda directory: [WELL])
    assert main(["doctor"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "no problems found"


@pytest.mark.parametrize(
    ("platform", "kind", "fiddler"),
    [("gpu", "NVIDIA H100 80GB HBM3", "gpu"), ("tpu", "TPU v5 lite", "tpu"), ("gpu", "MI300X", "")],
)
def test_settings_for_accelerators_are_recommended(
    platform, kind, fiddler, hosts, monkeypatch, capsys
):
    device = types.SimpleNamespace(platform=platform, device_kind=kind)
    monkeypatch.setattr(parallel.hosts, "devices", lambda: [device])
    assert main(["doctor"]) == 0
    recommended = [x for x in capsys.readouterr().out.splitlines() if "has settings" in x]
    command = f"luthier show EXPERIMENT fiddler:{fiddler} --changes"
    expected = [f"fiddler:{fiddler} has settings for these devices: {command}"] if fiddler else []
    assert recommended == expected


def test_options_that_contradict_each_other_are_refused(hosts, capsys):
    assert main(["doctor", "--distributed", "--processes", "2"]) == 2
    assert "cannot be combined" in capsys.readouterr().err
    assert hosts == []


class Site:
    """An engine that ran what it was given before anybody looked."""

    name, layout = "site", Resources(2, 1, "cpu:4")

    def __init__(self, state, printed):
        self.submitted, self.standing, self.printed = [], [Standing("waiting"), state], printed

    def submit(self, groups, directory):
        (group,) = self.submitted = groups
        group.log_path(0).parent.mkdir()
        group.log_path(0).write_text(self.printed)
        return [Job("site", "17", group.name, directory)]

    def standings(self, jobs):
        return [self.standing.pop(0)]


@pytest.fixture
def site(monkeypatch, tmp_path):
    def make(state, printed):
        engine = Site(state, printed)
        chosen = types.SimpleNamespace(name="site", make=lambda: engine)
        monkeypatch.setattr(settings, "choose", lambda on, root: chosen)
        monkeypatch.setattr(commands, "LOOK_SECONDS", 0.0)
        monkeypatch.chdir(tmp_path)
        return engine

    return make


def test_an_engine_starts_it_on_its_machines(site, capsys, tmp_path):
    engine = site(Standing("finished"), "the table\n")
    assert main(["doctor", "--on", "site", "--json"]) == 0
    (group,) = engine.submitted
    words = "--directory runs --json --devices cpu:4 --distributed --join-seconds 300"
    assert list(group.command) == ["-m", "luthier", "doctor", *words.split()]
    assert group.directory.startswith(f"{tmp_path}/runs/doctor/")
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("the table\n", "job 17 of site: waiting\n")


def test_measurements_of_one_second_have_logs_of_their_own(site, capsys, monkeypatch):
    monkeypatch.setattr("time.strftime", lambda format: "20260102-030405")
    directories = []
    for _ in range(3):
        engine = site(Standing("finished"), "the table\n")
        assert main(["doctor", "--on", "site", "--join-seconds", "900"]) == 0
        (group,) = engine.submitted
        assert group.command[-3:] == ("--distributed", "--join-seconds", "900")
        directories.append(pathlib.Path(group.directory).name)
    assert directories == ["20260102-030405", "20260102-030405-2", "20260102-030405-3"]


def test_a_place_that_cannot_be_made_is_one_line(site, capsys, tmp_path):
    site(Standing("finished"), "")
    (tmp_path / "runs").write_text("")
    assert main(["doctor", "--on", "site"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"luthier: cannot make {tmp_path}/runs/doctor/")


@pytest.mark.parametrize(
    ("on", "line"),
    [
        (
            "tpu-vm:tpu=pod,zone=us-east5-a",
            "luthier does not log in to the machines of a TPU, so --on cannot measure them; run "
            "`luthier doctor --distributed` on each of them",
        ),
        ("slurm", "cannot submit job.sh: sbatch: error: no such partition"),
    ],
)
def test_an_engine_that_refuses_leaves_no_folder(on, line, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.chdir(tmp_path)
    sbatch = tmp_path / "commands" / "sbatch"
    sbatch.parent.mkdir()
    sbatch.write_text("#!/bin/sh\necho 'sbatch: error: no such partition' >&2\nexit 1\n")
    sbatch.chmod(0o755)
    monkeypatch.setenv("PATH", f"{sbatch.parent}:{os.environ['PATH']}")
    assert main(["doctor", "--on", on]) == 2
    assert capsys.readouterr().err == f"luthier: {line}\n"
    assert list(tmp_path.glob("runs/doctor/*")) == []


def test_a_failure_on_other_machines_is_reported_here(site, capsys):
    engine = site(Standing("failed", "exit code 2"), "luthier: no GPU can be seen here\n\n")
    assert main(["doctor", "--on", "site"]) == 2
    place = engine.submitted[0].directory
    assert capsys.readouterr().err.splitlines()[-1] == (
        "luthier: job 17 of site failed (exit code 2): luthier: no GPU can be seen here; see "
        f"{place}"
    )


def test_an_engine_and_options_of_hosts_are_two_ways(site, capsys):
    site(Standing("finished"), "")
    assert main(["doctor", "--on", "site", "--distributed"]) == 2
    assert capsys.readouterr().err == (
        "luthier: --on starts the processes itself; leave out the options of several processes\n"
    )


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_two_real_processes_are_examined(tmp_path):
    done = subprocess.run(
        [sys.executable, *COMMAND],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    first, second = json.loads(done.stdout)["hosts"]
    assert (first["process"], second["process"]) == (0, 1)
    assert first["devices"] == second["devices"] == "2 x cpu"
    assert second["all_reduce_bytes"] > 1e5
    assert second["sees_directory"]
    assert abs(second["clock_skew_seconds"]) <= second["clock_uncertainty_seconds"] + 0.01
    assert list(tmp_path.iterdir()) == []
