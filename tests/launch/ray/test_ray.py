import builtins
import json
import sys

import pytest

from luthier.errors import BadInput, Problem, RunError
from luthier.launch import Job, Ray, Resources, Standing, ray


def test_a_group_gets_nodes_or_a_slice_of_tpus():
    assert Ray(hosts=2, processes_per_host=8, devices="gpu").layout == Resources(2, 8, "gpu")
    assert Ray(topology="4x4", accelerator="v5e").layout == Resources(4, 1)


def test_all_problems_are_reported_at_once():
    with pytest.raises(BadInput) as refusal:
        Ray(hosts=0, topology="4x", processes_per_host=0)
    assert str(refusal.value).splitlines() == [
        "ray: hosts is less than 1",
        "ray: processes_per_host is less than 1",
        "ray: cannot read topology '4x'; write it as 4x4",
        "ray: topology needs accelerator; set the type of TPU: accelerator=v5e",
    ]
    with pytest.raises(BadInput) as refusal:
        Ray(topology="2x3", accelerator="v5e")
    assert str(refusal.value) == "ray: hosts of 4 chips do not make up 2x3; set chips_per_host"


def test_the_file_can_be_read_and_submitted_by_hand(group):
    engine = Ray(address="head:6379", topology="2x4", accelerator="v6e", cpus=8)
    ((name, text),) = engine.files([group("-m", "luthier", restarts=3)], "/shared/jobs").items()
    contents = json.loads(text)
    assert contents["address"] == "head:6379"
    assert contents["request"]["topology"] == "2x4"
    assert contents["request"]["cpus"] == 8
    assert contents["groups"][0]["command"] == ["-m", "luthier"]
    assert " ".join(engine.command("/shared/jobs")) == (
        f"python -m luthier.launch.ray /shared/jobs/{name}"
    )


def test_how_a_group_ended_is_read_where_it_was_written(tmp_path):
    engine = Ray()
    jobs = [Job("ray", f"{name}-1", name, str(tmp_path), "auto") for name in "abc"]
    for job, text in zip(jobs, ["0 ", "3 ", "75 cancelled"], strict=True):
        (tmp_path / f"{job.group}.exit").write_text(text)
    assert engine.standings(jobs) == [
        Standing("finished", "exit code 0"),
        Standing("failed", "exit code 3"),
        Standing("cancelled", "exit code 75"),
    ]


@pytest.fixture
def without_ray(monkeypatch):
    real = builtins.__import__

    def refuse(name, *given):
        if name == "ray" or name.startswith("ray."):
            raise ImportError(name)
        return real(name, *given)

    monkeypatch.delitem(sys.modules, "ray", raising=False)
    monkeypatch.setattr(builtins, "__import__", refuse)


def test_without_ray_one_line_says_how_to_get_it(without_ray, group, tmp_path):
    line = "the engine ray needs Ray, which is not installed; pip install 'luthier[ray]'"
    with pytest.raises(RunError) as refusal:
        Ray().submit([group("-m", "luthier")], str(tmp_path))
    assert str(refusal.value) == line
    (standing,) = Ray().standings([Job("ray", "a-1", "a", str(tmp_path), "auto")])
    assert standing == Standing("unknown", line)


def test_jobs_are_named(monkeypatch, tmp_path, capsys):
    asked = []

    def handed_over(path):
        asked.append(path)
        return [Job("ray", "lab-0-ab", "lab-0", ""), Job("ray", "lab-1-cd", "lab-1", "")]

    monkeypatch.setattr(ray, "submit_file", handed_over)
    assert ray.main([str(tmp_path / "groups.json")]) == 0
    assert asked == [tmp_path / "groups.json"]
    assert capsys.readouterr().out == "lab-0-ab\nlab-1-cd\n"


def test_what_the_cluster_refuses_is_one_line(monkeypatch, capsys):
    def refuse(path):
        raise RunError(Problem("the Ray cluster at auto does not answer"))

    monkeypatch.setattr(ray, "submit_file", refuse)
    assert ray.main(["groups.json"]) == 2
    assert capsys.readouterr().err == "luthier: the Ray cluster at auto does not answer\n"


def test_wrong_arguments_print_the_usage(capsys):
    assert ray.main([]) == 2
    assert capsys.readouterr().err.startswith("usage: python -m luthier.launch.ray ")
