import pathlib

import kubernetes_cluster
import pytest
import yaml

from luthier.launch.kubernetes import Kubernetes, job_set, resource_name

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
