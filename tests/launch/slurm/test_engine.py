import pytest

from luthier.errors import BadInput
from luthier.launch import slurm
from luthier.launch.engine import Job, ProcessGroup, Resources
from luthier.launch.slurm import Slurm


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
