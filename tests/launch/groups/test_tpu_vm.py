import shlex

import pytest

from luthier.errors import RunError
from luthier.launch import ProcessGroup, Resources, TpuVm

GROUP = ProcessGroup("run", ["-m", "luthier", "train", "a b"], "/d", "/project", {"A": "1 2"})


def test_the_command_starts_the_group_on_all_machines():
    engine = TpuVm(tpu="pod", zone="us-east5-a", project="lab", setup=["source venv/bin/activate"])
    (text,) = engine.files([GROUP], "/d").values()
    assert shlex.split(text) == [
        *("gcloud", "compute", "tpus", "tpu-vm", "ssh", "pod", "--zone=us-east5-a"),
        "--project=lab",
        "--worker=all",
        "--command=source venv/bin/activate && cd /project && "
        "A='1 2' python3 -m luthier train 'a b'",
    ]


def test_a_person_runs_it():
    engine = TpuVm(tpu="pod", zone="z")
    assert engine.layout == Resources()
    assert engine.command("/d") == []
    with pytest.raises(RunError) as caught:
        engine.submit([GROUP], "/d")
    assert str(caught.value) == (
        "luthier does not log in to the machines of a TPU; "
        "run the command that `luthier launch --print` prints"
    )
    assert engine.standings([]) == []
    engine.cancel([])
