"""The manifest of a JobSet that is a gang.

Source: the JobSet API `jobset.x-k8s.io/v1alpha2`, and pod failure policies of `batch/v1`.
"""

from __future__ import annotations

import dataclasses
import hashlib
import re
import shlex
from collections.abc import Mapping
from typing import Any

from luthier.errors import EXIT_REQUEUE
from luthier.launch.engine import LOGS, Gang

API_VERSION = "jobset.x-k8s.io/v1alpha2"
JOB = "gang"
PORT = 8476
SAVE_SECONDS = 120
"""What pods get to save, between SIGTERM and SIGKILL."""

JOIN_SECONDS = 600
"""How far apart the pods of a gang may start: each node pulls the image by itself."""

_LONGEST_NAME = 40
_INDEX = "$JOB_COMPLETION_INDEX"


@dataclasses.dataclass(frozen=True)
class Pods:
    """What the pods of a gang are like.

    Args:
      image: The container image, with Python, luthier and the user's project.
      hosts: Pods of the gang, one for each host.
      namespace: Where the JobSet is.
      limits: What each pod gets, by the names that Kubernetes has for resources.
      node_selector: Labels of the nodes that may be used.
      volumes: Claims of volumes by the path that they are mounted at.
      queue: The queue of Kueue; empty for none.
      exclusive: The label of nodes whose groups a gang has to itself; empty for none.
    """

    image: str
    hosts: int
    namespace: str
    limits: Mapping[str, Any]
    node_selector: Mapping[str, str]
    volumes: Mapping[str, str]
    queue: str
    exclusive: str


def job_set(gang: Gang, pods: Pods) -> dict[str, Any]:
    """Return the manifest of a gang as nested plain data.

    Args:
      gang: The gang.
      pods: What its pods are like.
    """
    name = resource_name(gang.name, gang.directory)
    labels = {"app.kubernetes.io/managed-by": "luthier"}
    if pods.queue:
        labels["kueue.x-k8s.io/queue-name"] = pods.queue
    metadata: dict[str, Any] = {"name": name, "namespace": pods.namespace, "labels": labels}
    if pods.exclusive:
        metadata["annotations"] = {"alpha.jobset.sigs.k8s.io/exclusive-topology": pods.exclusive}
    return {
        "apiVersion": API_VERSION,
        "kind": "JobSet",
        "metadata": metadata,
        "spec": {
            "network": {"enableDNSHostnames": True, "subdomain": name},
            "failurePolicy": {
                "maxRestarts": gang.restarts,
                "rules": [
                    {
                        # Whoever saved and left, or lost its node, is started again, uncounted.
                        "name": "preempted",
                        "action": "RestartJobSetAndIgnoreMaxRestarts",
                        "onJobFailureReasons": ["PodFailurePolicy"],
                    }
                ],
            },
            "replicatedJobs": [{"name": JOB, "replicas": 1, "template": _job(gang, pods, name)}],
        },
    }


def resource_name(name: str, directory: str) -> str:
    """Return what a gang's JobSet is called: names of pods and of their network follow from it.

    Args:
      name: The gang's name.
      directory: The gang's folder: two gangs of one name are told apart by it.
    """
    plain = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:_LONGEST_NAME].strip("-")
    digits = hashlib.sha256(directory.encode()).hexdigest()[:6]
    return f"{plain if plain[:1].isalpha() else f'gang-{plain}'.strip('-')}-{digits}"


def _job(gang: Gang, pods: Pods, name: str) -> dict[str, Any]:
    saved = {
        "action": "FailJob",
        "onExitCodes": {"containerName": JOB, "operator": "In", "values": [EXIT_REQUEUE]},
    }
    lost = {
        "action": "FailJob",
        "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}],
    }
    return {
        "spec": {
            "parallelism": pods.hosts,
            "completions": pods.hosts,
            "completionMode": "Indexed",
            "backoffLimit": 0,
            "podFailurePolicy": {"rules": [saved, lost]},
            "template": {"spec": _pod(gang, pods, name)},
        }
    }


def _pod(gang: Gang, pods: Pods, name: str) -> dict[str, Any]:
    container = {
        "name": JOB,
        "image": pods.image,
        "command": ["bash", "-c", _script(gang, pods), gang.name],
        "args": list(gang.command),
        "env": [{"name": n, "value": v} for n, v in _environment(gang, pods, name).items()],
        "resources": {"limits": dict(pods.limits)},
    }
    spec: dict[str, Any] = {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": SAVE_SECONDS,
    }
    if pods.node_selector:
        spec["nodeSelector"] = dict(pods.node_selector)
    if pods.volumes:
        numbered = list(enumerate(pods.volumes.items()))
        container["volumeMounts"] = [
            {"name": f"volume-{number}", "mountPath": path} for number, (path, _) in numbered
        ]
        spec["volumes"] = [
            {"name": f"volume-{number}", "persistentVolumeClaim": {"claimName": claim}}
            for number, (_, claim) in numbered
        ]
    return {**spec, "containers": [container]}


def _environment(gang: Gang, pods: Pods, name: str) -> dict[str, str]:
    if pods.hosts == 1:
        return dict(gang.environment)
    return {
        **gang.environment,
        "JAX_COORDINATOR_ADDRESS": f"{name}-{JOB}-0-0.{name}:{PORT}",
        "JAX_NUM_PROCESSES": str(pods.hosts),
        "LUTHIER_JOIN_SECONDS": str(JOIN_SECONDS),
    }


def _script(gang: Gang, pods: Pods) -> str:
    """Return what a pod runs: Python in the place of the shell, so that it hears SIGTERM."""
    logs = shlex.quote(f"{gang.directory}/{LOGS}")
    log = f"{logs}/{shlex.quote(gang.name)}-rank-{_INDEX}.log"
    lines = [f"mkdir -p {logs} || exit 1", f"exec > >(tee -a {log}) 2>&1"]
    if pods.hosts > 1:
        lines.append(f"export JAX_PROCESS_ID={_INDEX}")
    lines += [f"cd {shlex.quote(gang.working_directory)} || exit 1", 'exec python "$@"']
    return "\n".join([*lines, ""])
