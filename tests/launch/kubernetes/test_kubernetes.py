import dataclasses
import pathlib
import shutil

import injections
import kubernetes_cluster
import kubernetes_controller
import pytest
import yaml

from luthier.errors import BadInput, RunError
from luthier.launch import Job, Kubernetes, Resources, Standing
from luthier.launch import kubernetes as engines
from luthier.launch.kubernetes import job_set, resource_name, standing_of

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
        "kubernetes: topology needs accelerator; set the type of TPU: accelerator=tpu-v6e-slice",
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
    assert str(refusal.value).startswith("the cluster rejected the request: ")
    assert "field is immutable" in str(refusal.value)
    with pytest.raises(RunError, match=r"limits\.memory: 'lots' is no quantity"):
        Kubernetes(image="i", limits={"memory": "lots"}).submit([found], str(tmp_path / "b"))


@pytest.fixture
def kubectl(tmp_path, monkeypatch):
    """Return a function that puts a script in the place of kubectl."""

    def install(script):
        path = tmp_path / "bin" / "kubectl"
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)

    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    return install


def test_a_cluster_that_does_not_answer_is_one_line_and_its_jobs_are_unknown(
    kubectl, group, tmp_path, monkeypatch
):
    monkeypatch.setattr(engines, "ANSWER_SECONDS", 0.2)
    kubectl("exec sleep 20")
    engine = Kubernetes(image="i")
    with pytest.raises(RunError) as refusal:
        engine.submit([group()], str(tmp_path))
    assert str(refusal.value) == "the cluster does not answer in 0.2 s"
    place = '{"context": "lab", "namespace": "default"}'
    (standing,) = engine.standings([Job("kubernetes", "a", "a", "/", place)])
    assert standing == Standing("unknown", "the cluster does not answer in 0.2 s")


def test_within_a_pod_kubectl_is_used_without_a_context(kubectl, group, tmp_path):
    """There, kubectl finds the cluster by itself, and has no context that could be named."""
    log = tmp_path / "calls"
    kubectl(f'echo "$*" >> {log}; [ "$1" != config ] || {{ echo none >&2; exit 1; }}')
    engine = Kubernetes(image="i", namespace="research")
    jobs = engine.submit([group()], str(tmp_path))
    assert [job.place for job in jobs] == ['{"context": "", "namespace": "research"}']
    engine.cancel(jobs)
    calls = log.read_text().splitlines()
    assert "config current-context" in calls
    assert "--namespace=research" in calls[-1]
    assert "--context" not in calls[-1]


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


MANIFESTS = pathlib.Path(__file__).parent / "manifests"
GPUS = Kubernetes(
    image="registry.example/lab:1",
    namespace="research",
    hosts=2,
    gpus=8,
    limits={"cpu": 64, "memory": "512Gi"},
    volumes={"/shared": "research-runs"},
    queue="gpus",
)
TPUS = Kubernetes(
    image="registry.example/lab:1",
    topology="4x4",
    accelerator="tpu-v6e-slice",
    volumes={"/shared": "research-runs"},
    node_selector={"cloud.google.com/gke-spot": "true"},
)
ONE = Kubernetes(image="registry.example/lab:1", devices="cpu")


@pytest.mark.parametrize(("name", "engine"), [("gpus", GPUS), ("tpus", TPUS), ("one", ONE)])
def test_manifests_are_those_that_were_looked_at(name, engine, group, request):
    groups = [group()] if name != "tpus" else [group(), group("lab-1", restarts=0)]
    ((file, text),) = engine.files(groups, "/shared/studies/lab/launch/1").items()
    assert file == "jobsets.yaml"
    assert text == (MANIFESTS / f"{name}.yaml").read_text()
    for document in yaml.safe_load_all(text):
        assert kubernetes_cluster.problems(document, kubernetes_cluster.JOB_SET) == []
        assert kubernetes_cluster.refusals(document) == []


def test_the_pods_of_a_group_find_each_other(group):
    manifest = job_set(group(), TPUS._pods)
    (replicated,) = manifest["spec"]["replicatedJobs"]
    job = replicated["template"]["spec"]
    assert (job["parallelism"], job["completions"]) == (4, 4)
    (container,) = job["template"]["spec"]["containers"]
    variables = {entry["name"]: entry["value"] for entry in container["env"]}
    name = manifest["metadata"]["name"]
    host, _, port = variables["JAX_COORDINATOR_ADDRESS"].partition(":")
    # The name of a pod in its network: of the JobSet, the job in it, and the index of the pod.
    assert host == f"{name}-group-0-0.{manifest['spec']['network']['subdomain']}"
    assert (variables["JAX_NUM_PROCESSES"], port) == ("4", "8476")
    assert "export JAX_PROCESS_ID=$JOB_COMPLETION_INDEX\n" in container["command"][2]


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("lab-0", "lab-0-"),
        ("My_Study 7", "my-study-7-"),
        ("7", "group-7-"),
        ("a" * 80, "a" * 40 + "-"),
        ("__", "group-"),
    ],
)
def test_names_are_those_of_hosts(name, found):
    made = resource_name(name, "/shared/a")
    assert made.startswith(found)
    assert kubernetes_cluster._LABEL.fullmatch(made)
    assert len(made) <= 52
    assert made != resource_name(name, "/shared/b")
