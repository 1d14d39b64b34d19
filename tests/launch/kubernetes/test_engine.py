import dataclasses
import pathlib
import shutil

import injections
import kubernetes_cluster
import kubernetes_controller
import pytest
import yaml

from luthier.errors import BadInput, RunError
from luthier.launch import kubernetes as engines
from luthier.launch.engine import Job, Resources, Standing
from luthier.launch.kubernetes import Kubernetes, standing_of

needs_kubectl = pytest.mark.skipif(shutil.which("kubectl") is None, reason="there is no kubectl")


def test_what_a_group_gets():
    assert Kubernetes(image="i", hosts=3, devices="gpu").layout == Resources(3, 1, "gpu")
    assert Kubernetes(image="i", topology="4x8", accelerator="a").layout == Resources(8, 1)


def test_all_problems_are_reported_at_once():
    with pytest.raises(BadInput) as refusal:
        Kubernetes(hosts=0, topology="2x3")
    assert str(refusal.value).splitlines() == [
        "kubernetes: image is missing; name an image with Python, luthier and your project: "
        "image=...",
        "kubernetes: hosts is less than 1",
        "kubernetes: hosts of 4 chips do not make up 2x3; set chips_per_host",
        "kubernetes: topology needs accelerator; say which TPUs: accelerator=tpu-v6e-slice",
    ]
    with pytest.raises(BadInput, match="cannot read topology '4x'; write it as 4x4"):
        Kubernetes(image="i", topology="4x", accelerator="a")


@pytest.fixture
def cluster(tmp_path, monkeypatch):
    with kubernetes_cluster.serving() as (address, job_sets):
        configuration = tmp_path / "kubeconfig"
        kubernetes_cluster.write_configuration(configuration, address)
        monkeypatch.setenv("KUBECONFIG", str(configuration))
        monkeypatch.setenv("HOME", str(tmp_path))  # where kubectl remembers what servers offer
        yield job_sets


@needs_kubectl
def test_groups_are_applied_looked_at_and_deleted(cluster, group, tmp_path):
    engine = Kubernetes(image="i", namespace="research", hosts=2)
    groups = [
        dataclasses.replace(group(f"lab-{index}"), directory=str(tmp_path)) for index in (0, 1)
    ]
    jobs = engine.submit(groups, str(tmp_path))
    assert [job.id for job in jobs] == [name for _, name in cluster]
    assert {namespace for namespace, _ in cluster} == {"research"}
    assert {job.place for job in jobs} == {'{"context": "lab", "namespace": "research"}'}
    written = list(yaml.safe_load_all((tmp_path / "jobsets.yaml").read_text()))
    assert [{k: applied[k] for k in written[0]} for applied in cluster.values()] == written
    assert engine.submit(groups, str(tmp_path)) == jobs, "applying it again changes nothing"
    waiting = Standing("waiting", "it has no pods yet")
    assert engine.standings(jobs) == [waiting] * 2
    cluster["research", jobs[0].id]["status"] = {
        "restarts": 2,
        "replicatedJobsStatus": [{"name": "group", "ready": 1, "active": 1}],
    }
    running = Standing("running", "all pods are ready", restarts=2)
    assert engine.standings(jobs) == [running, waiting]
    engine.cancel(jobs[:1])
    engine.cancel(jobs[:1])
    assert engine.standings(jobs) == [Standing("cancelled", "its JobSet was deleted"), waiting]


@needs_kubectl
def test_what_the_cluster_refuses_is_one_line(cluster, group, tmp_path):
    found = dataclasses.replace(group(), directory=str(tmp_path))
    Kubernetes(image="i").submit([found], str(tmp_path))
    with pytest.raises(RunError) as refusal:
        Kubernetes(image="another").submit([found], str(tmp_path))
    assert str(refusal.value).startswith("the cluster refuses: ")
    assert "field is immutable" in str(refusal.value)
    with pytest.raises(RunError, match=r"limits\.memory: 'lots' is no quantity"):
        Kubernetes(image="i", limits={"memory": "lots"}).submit([found], str(tmp_path / "b"))


@needs_kubectl
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_two_hundred_short_trials_on_four_workers_survive_random_kills(
    cluster, tmp_path, monkeypatch
):
    tests = pathlib.Path(__file__).parents[2]
    folders = [tests.parent / "framework", tests / "launch", tests / "study"]
    monkeypatch.setenv("PYTHONPATH", ":".join(map(str, folders)))
    monkeypatch.chdir(tmp_path)
    with kubernetes_controller.Controller(cluster) as controller:
        engine = Kubernetes(image="i")
        outcome, kills = injections.drive(tmp_path, engine, slices=4, trials=200, kills=40, seed=5)
    losses = injections.check_nothing_lost(tmp_path, outcome, 200)
    assert 10 <= controller.restarts <= kills
    assert 0 < sum(number * times for number, times in losses.items()) <= kills


def test_without_kubectl_the_manifests_are_written_for_whoever_has_it(group, tmp_path, monkeypatch):
    monkeypatch.setattr(engines.shutil, "which", lambda name: None)
    with pytest.raises(RunError) as refusal:
        Kubernetes(image="i").submit([group()], str(tmp_path))
    assert str(refusal.value) == (
        "kubectl is not installed here; run this where it is: kubectl apply --server-side -f "
        f"{tmp_path}/jobsets.yaml"
    )
    assert (tmp_path / "jobsets.yaml").exists()
    place = '{"context": "", "namespace": "default"}'
    (standing,) = Kubernetes(image="i").standings([Job("kubernetes", "a", "a", "/", place)])
    assert standing.state == "unknown"


@pytest.mark.parametrize(
    ("status", "standing"),
    [
        ({}, Standing("waiting", "it has no pods yet")),
        (
            {"replicatedJobsStatus": [{"ready": 0, "active": 1}]},
            Standing("waiting", "its pods are being placed"),
        ),
        (
            {"conditions": [{"type": "Suspended", "status": "True", "message": "in the queue"}]},
            Standing("waiting", "Suspended in the queue"),
        ),
        (
            {
                "conditions": [
                    {"type": "Suspended", "status": "False"},
                    {"type": "Completed", "status": "True"},
                ],
                "restarts": 1,
            },
            Standing("finished", "Completed", restarts=1),
        ),
        (
            {"conditions": [{"type": "Failed", "status": "True", "message": "too many restarts"}]},
            Standing("failed", "Failed too many restarts"),
        ),
    ],
)
def test_how_a_job_set_stands(status, standing):
    assert standing_of(status) == standing
