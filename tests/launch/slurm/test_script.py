import os
import shutil
import subprocess

import pytest

from luthier.launch import slurm
from luthier.launch.engine import ProcessGroup, Resources


def _groups(number, restarts=0):
    words = ["-m", "luthier", "train", "it's"]
    return [
        ProcessGroup(f"study-{index}", words, "/shared/launch", "/project", {"A": "b c"}, restarts)
        for index in range(number)
    ]


def _render(groups, directory="/shared/launch", layout=Resources(2), **settings):
    given = {"groups_per_job": 1, "devices_per_process": 0, "setup": (), "notes": ()}
    given |= settings
    options = given.pop("options", {})
    return slurm.render(groups, directory, layout, options, {"cpus-per-task": 4}, **given)


def _directives(text):
    return [line for line in text.splitlines() if line.startswith("#SBATCH")]


def test_one_group_is_one_job():
    text = _render(_groups(1), options={"comment": "two words"}, setup=["module load cuda"])
    assert _directives(text) == [
        "#SBATCH --job-name=study-0",
        "#SBATCH --nodes=2",
        "#SBATCH --ntasks-per-node=1",
        "#SBATCH --output=/shared/launch/logs/slurm-%j.log",
        "#SBATCH --open-mode=append",
        '#SBATCH --comment="two words"',
        "#SBATCH --requeue",
    ]
    assert "cd /project || exit 1\nexport A='b c'\nmodule load cuda\n" in text
    assert "srun --nodes=2 --ntasks=2 --ntasks-per-node=1 --cpus-per-task=4 \\" in text
    assert "run_group study-0 0 -m luthier train 'it'\"'\"'s' & groups+=($!)" in text
    assert "--exact" not in text


def test_groups_of_a_sweep_are_an_array():
    text = _render(_groups(3))
    assert "#SBATCH --array=0-2" in _directives(text)
    assert "#SBATCH --job-name=study" in _directives(text)
    assert "#SBATCH --output=/shared/launch/logs/slurm-%A_%a.log" in _directives(text)
    assert text.count("  run_group study-") == 3
    assert "1)\n  run_group study-1 " in text


def test_groups_that_share_an_allocation_have_steps_of_their_own():
    text = _render(_groups(3), groups_per_job=2)
    assert {"#SBATCH --nodes=4", "#SBATCH --array=0-1"} <= set(_directives(text))
    assert "--exact" in text
    assert "0)\n  run_group study-0 " in text
    assert "1)\n  run_group study-2 " in text


def test_processes_of_a_host_share_its_devices():
    text = _render(_groups(1), layout=Resources(2, 4), devices_per_process=2)
    assert "--ntasks=8 --ntasks-per-node=4" in text
    assert "--devices-per-process 2 -- " in text


@pytest.fixture
def site(tmp_path):
    """Return a function that runs a script with commands that stand in for SLURM's."""
    programs = tmp_path / "programs"
    programs.mkdir()
    log = tmp_path / "told"
    for name, text in {
        "srun": f'read -r code < {tmp_path}/codes; sed -i 1d {tmp_path}/codes; exit "$code"',
        "squeue": f"cat {tmp_path}/state",
        "scontrol": f'echo "$@" >> {log}',
    }.items():
        (programs / name).write_text(f"#!/bin/bash\n{text}\n")
        (programs / name).chmod(0o755)

    def run(codes, state="RUNNING", restarts=0, closed=False, array=None):
        (tmp_path / "codes").write_text("".join(f"{code}\n" for code in codes))
        (tmp_path / "state").write_text(f"{state}\n")
        log.write_text("")
        if closed:
            (tmp_path / "closed").touch()
        group = ProcessGroup("g", ["-V"], str(tmp_path), str(tmp_path), restarts=restarts)
        job = tmp_path / "job.sh"
        job.write_text(_render([group], str(tmp_path)))
        path = f"{programs}:{os.environ['PATH']}"
        ended = subprocess.run(
            ["bash", str(job)],
            env={"PATH": path, "SLURM_JOB_ID": "7", **(array or {})},
            capture_output=True,
            text=True,
            timeout=60,
        )
        left = (tmp_path / "codes").read_text().split()
        return ended.returncode, log.read_text(), len(left)

    return run


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
@pytest.mark.parametrize(
    ("codes", "settings", "expected"),
    [
        ([0], {}, (0, "", 0)),
        ([2, 0], {}, (2, "", 1)),
        ([75], {}, (75, "requeue 7\n", 0)),
        ([75], {"state": "COMPLETING"}, (75, "", 0)),
        (
            [75],
            {"array": {"SLURM_ARRAY_JOB_ID": "7", "SLURM_ARRAY_TASK_ID": "2"}},
            (75, "requeue 7_2\n", 0),
        ),
        ([137, 1, 0], {"restarts": 5}, (0, "", 0)),
        ([137, 75, 0], {"restarts": 5}, (75, "requeue 7\n", 1)),
        ([1, 1, 0], {"restarts": 1}, (1, "", 1)),
        ([137, 0], {"restarts": 5, "closed": True}, (137, "", 1)),
    ],
    ids=[
        "done",
        "fails",
        "preempted",
        "cancelled",
        "array",
        "again",
        "both",
        "too often",
        "closed",
    ],
)
def test_what_the_script_does_with_an_exit_code(site, codes, settings, expected):
    assert site(codes, **settings) == expected
