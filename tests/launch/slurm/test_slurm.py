import os
import shutil
import subprocess

import pytest

from luthier.errors import BadInput, RunError
from luthier.launch import Job, ProcessGroup, Resources, Slurm, Standing, slurm


def _groups(place, number):
    return [ProcessGroup(f"study-{i}", ["-V"], str(place), str(place)) for i in range(number)]


@pytest.fixture
def commands(monkeypatch):
    """Return the words that were called, instead of calling them."""
    commands = []

    def call(*words, what):
        commands.append(words)
        return "12\n"

    monkeypatch.setattr(slurm, "call", call)
    return commands


def test_what_a_group_gets():
    assert Slurm(nodes=2, processes_per_node=4, devices="cpu:1").layout == Resources(2, 4, "cpu:1")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"nodes": 0}, "nodes is less than 1"),
        (
            {"gpus_per_node": 8, "processes_per_node": 3},
            "8 GPUs cannot be shared by 3 processes",
        ),
    ],
)
def test_settings_that_cannot_be(settings, message):
    with pytest.raises(BadInput, match=f"^slurm: {message}"):
        Slurm(**settings)


def test_the_settings_of_a_site_are_in_the_script(tmp_path):
    site = Slurm(
        gpus_per_node=8,
        processes_per_node=4,
        memory="64G",
        time_limit="1:00:00",
        partition="gpu",
        account="lab",
        options={"qos": "high", "signal": "TERM@600"},
    )
    (text,) = site.files(_groups(tmp_path, 1), str(tmp_path)).values()
    wanted = ["gpus-per-node=8", "mem=64G", "time=1:00:00", "partition=gpu", "account=lab"]
    for option in [*wanted, "qos=high", "signal=TERM@600"]:
        assert text.count(f"#SBATCH --{option}\n") == 1
    assert "--devices-per-process 2" in text


def test_jobs_are_distinguished(tmp_path, commands):
    (alone,) = Slurm().submit(_groups(tmp_path, 1), str(tmp_path))
    assert alone == Job("slurm", "12", "study-0", str(tmp_path))
    array = Slurm(groups_per_job=2).submit(_groups(tmp_path, 3), str(tmp_path))
    assert [job.id for job in array] == ["12_0", "12_0", "12_1"]
    shared = Slurm(groups_per_job=2).submit(_groups(tmp_path, 2), str(tmp_path))
    assert [job.id for job in shared] == ["12", "12"]
    assert commands == [("sbatch", "--parsable", f"{tmp_path}/{slurm.SCRIPT}")] * 3
    assert (tmp_path / "job.sh").read_text().startswith("#!/bin/bash\n")


def test_each_job_is_cancelled_once(tmp_path, commands):
    site = Slurm()
    site.cancel(site.submit(_groups(tmp_path, 2), str(tmp_path)))
    assert commands[1:] == [("scancel", "12_0", "12_1")]
    site.cancel([])
    assert len(commands) == 2


LISTED = """\
12|RUNNING|None|n[1-2]|0|
13_0|PENDING|Priority||0|
13_1|COMPLETED|None|gpu[08-10,12]-a,m1|2|
14|NODE_FAIL|NodeDown|n3|1|
15|CANCELLED by 0|None|n3|0|
"""


@pytest.fixture
def queue_commands(tmp_path, monkeypatch):
    """Return a function that makes a command print something, and end with an exit code."""
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")

    def make(name, text, code=0, error=""):
        (tmp_path / "text").write_text(text)
        (tmp_path / name).write_text(
            f"#!/bin/bash\ncat {tmp_path}/text\necho '{error}' >&2\nexit {code}\n"
        )
        (tmp_path / name).chmod(0o755)

    return make


def test_how_jobs_stand(queue_commands):
    queue_commands("squeue", LISTED)
    assert slurm.standings(["13_1", "12", "13_0", "14", "15", "99"]) == [
        Standing("finished", "COMPLETED", ("gpu08-a", "gpu09-a", "gpu10-a", "gpu12-a", "m1"), 2),
        Standing("running", "RUNNING", ("n1", "n2"), 0),
        Standing("waiting", "PENDING (Priority)", (), 0),
        Standing("failed", "NODE_FAIL (NodeDown)", ("n3",), 1),
        Standing("cancelled", "CANCELLED by 0", ("n3",), 0),
        Standing("unknown", "the queue does not know it any more", (), 0),
    ]


def test_a_queue_that_does_not_answer(queue_commands):
    queue_commands("squeue", "", 1, "slurm_load_jobs error: Unable to contact slurm controller")
    assert slurm.standings(["1"]) == [
        Standing(
            "unknown",
            "cannot ask for the queue: slurm_load_jobs error: Unable to contact slurm controller",
        )
    ]


def test_a_command_that_is_not_here(monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(RunError) as caught:
        slurm.call("sbatch", "job.sh", what="submit job.sh")
    assert str(caught.value) == (
        "cannot submit job.sh: there is no sbatch here; "
        "run this where SLURM's commands are, such as a login node"
    )


def test_ids_of_several_clusters():
    assert slurm.submitted("12\n") == "12"
    assert slurm.submitted("12;north\n") == "12"


def _script_groups(number, restarts=0):
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
    text = _render(_script_groups(1), options={"comment": "two words"}, setup=["module load cuda"])
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
    text = _render(_script_groups(3))
    assert "#SBATCH --array=0-2" in _directives(text)
    assert "#SBATCH --job-name=study" in _directives(text)
    assert "#SBATCH --output=/shared/launch/logs/slurm-%A_%a.log" in _directives(text)
    assert text.count("  run_group study-") == 3
    assert "1)\n  run_group study-1 " in text


def test_groups_that_share_an_allocation_have_steps_of_their_own():
    text = _render(_script_groups(3), groups_per_job=2)
    assert {"#SBATCH --nodes=4", "#SBATCH --array=0-1"} <= set(_directives(text))
    assert "--exact" in text
    assert "0)\n  run_group study-0 " in text
    assert "1)\n  run_group study-2 " in text


def test_processes_of_a_host_share_its_devices():
    text = _render(_script_groups(1), layout=Resources(2, 4), devices_per_process=2)
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
