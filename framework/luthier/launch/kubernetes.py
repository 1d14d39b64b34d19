"""Kubernetes: process groups as JobSets, written as manifests and applied by kubectl."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import re
import shlex
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from typing import Any

from luthier.errors import EXIT_REQUEUE, BadInput, Problem, RunError
from luthier.launch.engine import (
    LOGS,
    Job,
    ProcessGroup,
    Resources,
    Standing,
    check_script,
    write_files,
)

# The manifest of a JobSet that is a group.
#
# Source: the JobSet API `jobset.x-k8s.io/v1alpha2`, and pod failure policies of `batch/v1`.

API_VERSION = "jobset.x-k8s.io/v1alpha2"
JOB = "group"
PORT = 8476
SAVE_SECONDS = 120
"""The time for pods to save, between SIGTERM and SIGKILL."""

JOIN_SECONDS = 600
"""The time within which the pods of a group must start: each node pulls the image by itself."""

_LONGEST_NAME = 40
_INDEX = "$JOB_COMPLETION_INDEX"


@dataclasses.dataclass(frozen=True)
class Pods:
    """The pods of a process group.

    Args:
      image: The container image, with Python, luthier and the user's project.
      hosts: Pods of the group, one for each host.
      namespace: Where the JobSet is.
      limits: What each pod gets, by the names that Kubernetes has for resources.
      node_selector: Labels of the nodes that may be used.
      volumes: Claims of volumes by the path that they are mounted at.
      queue: The queue of Kueue; empty for none.
      exclusive: The label of nodes whose groups a process group has to itself; empty for none.
    """

    image: str
    hosts: int
    namespace: str
    limits: Mapping[str, Any]
    node_selector: Mapping[str, str]
    volumes: Mapping[str, str]
    queue: str
    exclusive: str


def job_set(group: ProcessGroup, pods: Pods) -> dict[str, Any]:
    """Return the manifest of a process group as nested plain data.

    Args:
      group: The group.
      pods: What its pods are like.
    """
    name = resource_name(group.name, group.directory)
    labels = {"app.kubernetes.io/managed-by": "luthier"}
    # Kueue admits a JobSet as a whole, which is what keeps two groups from holding half of the
    # nodes each.
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
            # Two policies work together. The Job fails for a pod that left with exit code 75, or
            # whose node was taken away, with the reason PodFailurePolicy; the JobSet then starts
            # all pods again without counting it. Any other failure counts against `maxRestarts`.
            "failurePolicy": {
                "maxRestarts": group.restarts,
                "rules": [
                    {
                        # Whoever saved and left, or lost its node, is started again, uncounted.
                        "name": "preempted",
                        "action": "RestartJobSetAndIgnoreMaxRestarts",
                        "onJobFailureReasons": ["PodFailurePolicy"],
                    }
                ],
            },
            "replicatedJobs": [{"name": JOB, "replicas": 1, "template": _job(group, pods, name)}],
        },
    }


def resource_name(name: str, directory: str) -> str:
    """Return the name of a group's JobSet: names of pods and of their network follow from it.

    Args:
      name: The group's name.
      directory: The group's folder, which distinguishes two process groups of one name.
    """
    # Names of pods are made of this name, the job's and an index, and must be DNS labels of at most
    # 63 characters.
    plain = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:_LONGEST_NAME].strip("-")
    digits = hashlib.sha256(directory.encode()).hexdigest()[:6]
    return f"{plain if plain[:1].isalpha() else f'group-{plain}'.strip('-')}-{digits}"


def _job(group: ProcessGroup, pods: Pods, name: str) -> dict[str, Any]:
    saved = {
        "action": "FailJob",
        "onExitCodes": {"containerName": JOB, "operator": "In", "values": [EXIT_REQUEUE]},
    }
    # `DisruptionTarget` is the condition that Kubernetes sets on a pod whose node is drained,
    # preempted or gone.
    lost = {
        "action": "FailJob",
        "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}],
    }
    return {
        "spec": {
            "parallelism": pods.hosts,
            "completions": pods.hosts,
            # Each pod has an index, which becomes its process id in JAX (`_script`).
            "completionMode": "Indexed",
            # A single pod that is started again would wait for peers that are in the middle of a
            # run.
            "backoffLimit": 0,
            "podFailurePolicy": {"rules": [saved, lost]},
            "template": {"spec": _pod(group, pods, name)},
        }
    }


def _pod(group: ProcessGroup, pods: Pods, name: str) -> dict[str, Any]:
    container = {
        "name": JOB,
        "image": pods.image,
        # The name is `$0` of the script, and so `args` are its "$@".
        "command": ["bash", "-c", _script(group, pods), group.name],
        "args": list(group.command),
        "env": [{"name": n, "value": v} for n, v in _environment(group, pods, name).items()],
        # Kubernetes takes limits for the requests, too, where no requests are given.
        "resources": {"limits": dict(pods.limits)},
    }
    spec: dict[str, Any] = {
        # Failures are for the Job and the JobSet, which start all pods again; the kubelet would
        # start one of them.
        "restartPolicy": "Never",
        # The default of 30 seconds is too short for a save.
        "terminationGracePeriodSeconds": SAVE_SECONDS,
    }
    if pods.node_selector:
        spec["nodeSelector"] = dict(pods.node_selector)
    if pods.volumes:
        # Names by number: a path may have letters that the name of a volume must not have.
        numbered = list(enumerate(pods.volumes.items()))
        container["volumeMounts"] = [
            {"name": f"volume-{number}", "mountPath": path} for number, (path, _) in numbered
        ]
        spec["volumes"] = [
            {"name": f"volume-{number}", "persistentVolumeClaim": {"claimName": claim}}
            for number, (_, claim) in numbered
        ]
    return {**spec, "containers": [container]}


def _environment(group: ProcessGroup, pods: Pods, name: str) -> dict[str, str]:
    if pods.hosts == 1:
        return dict(group.environment)
    return {
        **group.environment,
        # The DNS name of the first pod, by JobSet's scheme JOBSET-JOB-REPLICA-INDEX.SUBDOMAIN; it
        # is the same after a restart, and a free port is certain in a pod of its own.
        "JAX_COORDINATOR_ADDRESS": f"{name}-{JOB}-0-0.{name}:{PORT}",
        "JAX_NUM_PROCESSES": str(pods.hosts),
        "LUTHIER_JOIN_SECONDS": str(JOIN_SECONDS),
    }


def _script(group: ProcessGroup, pods: Pods) -> str:
    """Return the script of a pod: Python replaces the shell, so that it receives SIGTERM."""
    logs = shlex.quote(f"{group.directory}/{LOGS}")
    log = f"{logs}/{shlex.quote(group.name)}-rank-{_INDEX}.log"
    # `tee` in a process substitution: `kubectl logs` shows the output, and the shared disk keeps
    # it. A pipe would make Python a child of the shell, which does not pass signals on; `exec` puts
    # it in the shell's place.
    lines = [f"mkdir -p {logs} || exit 1", f"exec > >(tee -a {log}) 2>&1"]
    if pods.hosts > 1:
        lines.append(f"export JAX_PROCESS_ID={_INDEX}")
    lines += [f"cd {shlex.quote(group.working_directory)} || exit 1", 'exec python "$@"']
    return "\n".join([*lines, ""])


# The engine over a Kubernetes cluster that has JobSet installed.
#
# A group is a JobSet with a pod for each host; kubectl speaks with the cluster, as the user that it
# is set up for. Without kubectl the manifests are written all the same, for whoever has it.

MANIFESTS = "jobsets.yaml"
ANSWER_SECONDS = 60
_TPU_TOPOLOGY = "cloud.google.com/gke-tpu-topology"
_TPU_ACCELERATOR = "cloud.google.com/gke-tpu-accelerator"
_NODE_POOL = "cloud.google.com/gke-nodepool"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Kubernetes:
    """Starts process groups as JobSets.

    Args:
      image: The container image, with Python, luthier and the user's project.
      namespace: Where JobSets go.
      hosts: Pods of each process group.
      devices: What each pod runs on, as `--devices` takes it.
      gpus: GPUs of each pod.
      limits: What else each pod gets: `{"cpu": "16", "memory": "64Gi"}`.
      topology: The slice of Cloud TPUs of each process group, as `4x4`; `hosts` follows from it.
      accelerator: What GKE calls these TPUs, as `tpu-v6e-slice`.
      chips_per_host: TPU chips of each host of the slice.
      volumes: Claims of volumes by the path that they are mounted at: `{"/shared": "runs"}`.
      node_selector: Labels of the nodes that may be used.
      queue: The local queue of Kueue, which starts process groups whole; empty for none.
    """

    image: str = ""
    namespace: str = "default"
    hosts: int = 1
    devices: str | None = None
    gpus: int = 0
    limits: Mapping[str, str | int] = dataclasses.field(default_factory=dict)
    topology: str = ""
    accelerator: str = ""
    chips_per_host: int = 4
    volumes: Mapping[str, str] = dataclasses.field(default_factory=dict)
    node_selector: Mapping[str, str] = dataclasses.field(default_factory=dict)
    queue: str = ""

    name = "kubernetes"

    def __post_init__(self) -> None:
        problems = []
        if not self.image:
            remedy = "name an image with Python, luthier and your project: image=..."
            problems.append(Problem("image is missing", self.name, remedy=remedy))
        problems += [
            Problem(f"{field} is less than 1", self.name)
            for field in ("hosts", "chips_per_host")
            if getattr(self, field) < 1
        ]
        if self.topology:
            problems += self._problems_of_slice()
        if problems:
            raise BadInput(problems)

    def _problems_of_slice(self) -> list[Problem]:
        sizes = self.topology.split("x")
        if not all(size.isdecimal() and int(size) for size in sizes):
            remedy = "write it as 4x4"
            return [Problem(f"cannot read topology {self.topology!r}", self.name, remedy=remedy)]
        problems = []
        if self._num_chips % max(1, self.chips_per_host):
            what = f"hosts of {self.chips_per_host} chips do not make up {self.topology}"
            problems.append(Problem(what, self.name, remedy="set chips_per_host"))
        if not self.accelerator:
            remedy = "set the type of TPU: accelerator=tpu-v6e-slice"
            problems.append(Problem("topology needs accelerator", self.name, remedy=remedy))
        return problems

    @property
    def _num_chips(self) -> int:
        return math.prod(map(int, self.topology.split("x")))

    @property
    def layout(self) -> Resources:
        """The resources of one process group."""
        hosts = self._num_chips // self.chips_per_host if self.topology else self.hosts
        return Resources(hosts, 1, self.devices)

    @property
    def _pods(self) -> Pods:
        limits, selector = dict(self.limits), dict(self.node_selector)
        if self.gpus:
            limits["nvidia.com/gpu"] = self.gpus
        if self.topology:
            limits["google.com/tpu"] = self.chips_per_host
            selector |= {_TPU_ACCELERATOR: self.accelerator, _TPU_TOPOLOGY: self.topology}
        return Pods(
            image=self.image,
            hosts=self.layout.hosts,
            namespace=self.namespace,
            limits=limits,
            node_selector=selector,
            volumes=self.volumes,
            queue=self.queue,
            # A pool of nodes of TPUs is a slice.
            exclusive=_NODE_POOL if self.topology and not self.queue else "",
        )

    def files(self, groups: Sequence[ProcessGroup], directory: str) -> Mapping[str, str]:
        """Return the manifests, in a file.

        Args:
          groups: What would be started.
          directory: Where the file would be.

        Returns:
          Texts by file name.
        """
        check_script(self.name, groups, directory)
        documents = [job_set(group, self._pods) for group in groups]
        again = shlex.join(self.command(directory))
        text = _dump(documents)
        return {MANIFESTS: f"# Written by luthier. To apply it again by hand: {again}\n{text}"}

    def command(self, directory: str) -> Sequence[str]:
        """Return the command that applies the written manifests.

        Args:
          directory: Where the file is.

        Returns:
          The command and its arguments.
        """
        return ["kubectl", "apply", "--server-side", "-f", f"{directory}/{MANIFESTS}"]

    def submit(self, groups: Sequence[ProcessGroup], directory: str) -> Sequence[Job]:
        """Write the manifests, and apply them.

        Args:
          groups: What is started.
          directory: Where the file goes; pods see it under the same path.

        Returns:
          A job for each group.

        Raises:
          RunError: There is no kubectl, or the cluster refuses.
        """
        write_files(self.files(groups, directory), directory)
        _ask(self.command(directory))
        # Kept with the job: kubectl may be set to another cluster when the job is looked at.
        place = json.dumps({"context": _context(), "namespace": self.namespace})
        return [
            Job(self.name, resource_name(group.name, group.directory), group.name, directory, place)
            for group in groups
        ]

    def standings(self, jobs: Sequence[Job]) -> Sequence[Standing]:
        """Return the status of jobs, in their order; `unknown` where the cluster does not answer.

        Args:
          jobs: Jobs of this engine.

        Returns:
          A status for each job.
        """
        return [_standing(job) for job in jobs]

    def cancel(self, jobs: Sequence[Job]) -> None:
        """Delete JobSets; their pods save first.

        Args:
          jobs: Jobs of this engine.

        Raises:
          RunError: The cluster refuses.
        """
        for job in jobs:
            words = ["delete", "jobset", job.id, "--ignore-not-found", "--wait=false"]
            _ask([*_kubectl_of(job), *words])


def _dump(documents: Sequence[Mapping[str, Any]]) -> str:
    """Return YAML in which scripts can be read."""
    import yaml

    # A class of its own: representers are registered for a class, and `SafeDumper` is shared by the
    # whole process.
    class Dumper(yaml.SafeDumper):
        """Writes texts of several lines as they are."""

    def represent(dumper: Any, text: str) -> Any:
        style = "|" if "\n" in text else None
        return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)

    Dumper.add_representer(str, represent)
    return yaml.dump_all(documents, Dumper=Dumper, sort_keys=False, width=120)


def _context() -> str:
    """Return the cluster and user that kubectl is set to: it may be set to others later."""
    try:
        return _ask(["kubectl", "config", "current-context"]).strip()
    except RunError:
        return ""  # within a pod


def _kubectl_of(job: Job) -> list[str]:
    return [
        "kubectl",
        *(f"--{name}={value}" for name, value in json.loads(job.place).items() if value),
    ]


def _ask(command: Sequence[str]) -> str:
    """Run kubectl and return its output."""
    # The remedy is the command itself: the files are written by now, and whoever has access to the
    # cluster may run it elsewhere.
    if shutil.which(command[0]) is None:
        what = "kubectl is not installed here"
        raise RunError(Problem(what, remedy=f"run this where it is: {' '.join(command)}"))
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=ANSWER_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        raise RunError(f"the cluster does not answer in {ANSWER_SECONDS} s") from None
    if done.returncode:
        lines = " ".join(done.stderr.split()) or f"kubectl ended with exit code {done.returncode}"
        raise RunError(f"the cluster rejected the request: {lines}")
    return done.stdout


def _standing(job: Job) -> Standing:
    # `--ignore-not-found` makes an absent JobSet an empty answer, so that it differs from an error
    # of the cluster.
    words = ["get", "jobset", job.id, "--ignore-not-found", "--output=json"]
    try:
        output = _ask([*_kubectl_of(job), *words])
    except RunError as error:
        return Standing("unknown", str(error))
    if not output.strip():
        return Standing("cancelled", "its JobSet was deleted")
    return standing_of(json.loads(output).get("status", {}))


def standing_of(status: Mapping[str, Any]) -> Standing:
    """Return the status of a JobSet.

    Args:
      status: Its field `status`.
    """
    # A condition that does not hold (status "False") stays in the list.
    true = {c["type"]: c for c in status.get("conditions", ()) if c["status"] == "True"}
    restarts = status.get("restarts", 0)
    # Terminal conditions first: they stay true, whatever is suspended or counted afterwards.
    for type, state in (("Completed", "finished"), ("Failed", "failed"), ("Suspended", "waiting")):
        if type in true:
            detail = " ".join(filter(None, [type, true[type].get("message", "")]))
            return Standing(state, detail, restarts=restarts)  # type: ignore[arg-type]
    jobs = status.get("replicatedJobsStatus", ())
    # `ready` counts Jobs all of whose pods are ready; `active` those that have pods at all.
    if any(job.get("ready") for job in jobs):
        return Standing("running", "all pods are ready", restarts=restarts)
    active = any(job.get("active") for job in jobs)
    detail = "its pods are being placed" if active else "it has no pods yet"
    return Standing("waiting", detail, restarts=restarts)
