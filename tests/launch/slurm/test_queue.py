import pytest

from luthier.errors import RunError
from luthier.launch import slurm
from luthier.launch.engine import Standing

LISTED = """\
12|RUNNING|None|n[1-2]|0|
13_0|PENDING|Priority||0|
13_1|COMPLETED|None|gpu[08-10,12]-a,m1|2|
14|NODE_FAIL|NodeDown|n3|1|
15|CANCELLED by 0|None|n3|0|
"""


@pytest.fixture
def commands(tmp_path, monkeypatch):
    """Return a function that makes a command print something, and end with an exit code."""
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")

    def make(name, text, code=0, error=""):
        (tmp_path / "text").write_text(text)
        (tmp_path / name).write_text(
            f"#!/bin/bash\ncat {tmp_path}/text\necho '{error}' >&2\nexit {code}\n"
        )
        (tmp_path / name).chmod(0o755)

    return make


def test_how_jobs_stand(commands):
    commands("squeue", LISTED)
    assert slurm.standings(["13_1", "12", "13_0", "14", "15", "99"]) == [
        Standing("finished", "COMPLETED", ("gpu08-a", "gpu09-a", "gpu10-a", "gpu12-a", "m1"), 2),
        Standing("running", "RUNNING", ("n1", "n2"), 0),
        Standing("waiting", "PENDING (Priority)", (), 0),
        Standing("failed", "NODE_FAIL (NodeDown)", ("n3",), 1),
        Standing("cancelled", "CANCELLED by 0", ("n3",), 0),
        Standing("unknown", "the queue does not know it any more", (), 0),
    ]


def test_a_queue_that_does_not_answer(commands):
    commands("squeue", "", 1, "slurm_load_jobs error: Unable to contact slurm controller")
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
