"""The API server of a cluster that has JobSet, on this machine: as much of it as kubectl asks for.

It keeps what is applied, and refuses what the real one would: fields that JobSet, Job or a pod do
not have, wrong types and words, names of pods that are too long, changes of what must not change.
The fields are those of `jobset.x-k8s.io/v1alpha2`, `batch/v1` and `v1`, as far as groups use them.
There is no controller: tests set the status themselves.
"""

import contextlib
import http.server
import json
import re
import threading
import urllib.parse

import yaml

GROUP, VERSION = "jobset.x-k8s.io", "v1alpha2"
ROOT = f"/apis/{GROUP}/{VERSION}"
_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
_LIMIT = re.compile(r"\d+(\.\d+)?(m|Ki|Mi|Gi|Ti|k|M|G|T)?")


class Map:
    """Any names, with values of one kind."""

    def __init__(self, kind):
        self.kind = kind


class Word(tuple):
    """One of several words."""


QUANTITY = Map("quantity")
CONTAINER = {
    "name": str,
    "image": str,
    "command": [str],
    "args": [str],
    "env": [{"name": str, "value": str}],
    "resources": {"limits": QUANTITY, "requests": QUANTITY},
    "volumeMounts": [{"name": str, "mountPath": str, "readOnly": bool}],
}
POD = {
    "restartPolicy": Word(["Always", "OnFailure", "Never"]),
    "terminationGracePeriodSeconds": int,
    "serviceAccountName": str,
    "nodeSelector": Map(str),
    "volumes": [{"name": str, "persistentVolumeClaim": {"claimName": str, "readOnly": bool}}],
    "containers": [CONTAINER],
}
FAILURES = {
    "rules": [
        {
            "action": Word(["FailJob", "FailIndex", "Ignore", "Count"]),
            "onExitCodes": {
                "containerName": str,
                "operator": Word(["In", "NotIn"]),
                "values": [int],
            },
            "onPodConditions": [{"type": str, "status": Word(["True", "False", "Unknown"])}],
        }
    ]
}
JOB = {
    "parallelism": int,
    "completions": int,
    "completionMode": Word(["Indexed", "NonIndexed"]),
    "backoffLimit": int,
    "podFailurePolicy": FAILURES,
    "template": {"metadata": {"labels": Map(str), "annotations": Map(str)}, "spec": POD},
}
JOB_SET = {
    "apiVersion": Word([f"{GROUP}/{VERSION}"]),
    "kind": Word(["JobSet"]),
    "metadata": {
        "name": str,
        "namespace": str,
        "labels": Map(str),
        "annotations": Map(str),
    },
    "spec": {
        "suspend": bool,
        "ttlSecondsAfterFinished": int,
        "network": {
            "enableDNSHostnames": bool,
            "subdomain": str,
            "publishNotReadyAddresses": bool,
        },
        "failurePolicy": {
            "maxRestarts": int,
            "restartStrategy": Word(["Recreate", "BlockingRecreate"]),
            "rules": [
                {
                    "name": str,
                    "action": Word(
                        ["FailJobSet", "RestartJobSet", "RestartJobSetAndIgnoreMaxRestarts"]
                    ),
                    "onJobFailureReasons": [
                        Word(
                            [
                                "BackoffLimitExceeded",
                                "DeadlineExceeded",
                                "FailedIndexes",
                                "MaxFailedIndexesExceeded",
                                "PodFailurePolicy",
                            ]
                        )
                    ],
                    "targetReplicatedJobs": [str],
                }
            ],
        },
        "replicatedJobs": [
            {"name": str, "replicas": int, "template": {"metadata": {}, "spec": JOB}}
        ],
    },
}


def problems(value, schema, path="JobSet"):
    """Return what does not fit a schema, as strict validation of fields tells it."""
    if isinstance(schema, Map):
        if not isinstance(value, dict):
            return [f"{path}: not an object"]
        return [p for k, v in value.items() for p in problems(v, schema.kind, f"{path}.{k}")]
    if schema == "quantity":
        good = isinstance(value, int | str) and _LIMIT.fullmatch(str(value))
        return [] if good else [f"{path}: {value!r} is no quantity"]
    if isinstance(schema, Word):
        return [] if value in schema else [f"{path}: unsupported value {value!r}"]
    if isinstance(schema, dict):
        if not isinstance(value, dict):
            return [f"{path}: not an object"]
        found = [f"unknown field {path}.{name}" for name in value.keys() - schema.keys()]
        return found + [
            problem
            for name in value.keys() & schema.keys()
            for problem in problems(value[name], schema[name], f"{path}.{name}")
        ]
    if isinstance(schema, list):
        if not isinstance(value, list):
            return [f"{path}: not a list"]
        return [
            problem
            for index, item in enumerate(value)
            for problem in problems(item, schema[0], f"{path}[{index}]")
        ]
    good = isinstance(value, schema) and not (schema is int and isinstance(value, bool))
    return [] if good else [f"{path}: {value!r} is not {schema.__name__}"]


def refusals(job_set):
    """Return what the webhooks of JobSet and Job refuse beside wrong fields."""
    found, name = [], job_set["metadata"]["name"]
    subdomain = job_set["spec"].get("network", {}).get("subdomain", name)
    for what in (name, subdomain):
        if len(what) > 63 or not _LABEL.fullmatch(what):
            found.append(f"{what!r} is no DNS label")
    for replicated in job_set["spec"]["replicatedJobs"]:
        job = replicated["template"]["spec"]
        pod = job["template"]["spec"]
        last = f"{name}-{replicated['name']}-{replicated['replicas'] - 1}"
        # A pod is called after its index and five random letters.
        if len(f"{last}-{job['completions'] - 1}-abcde") > 63:
            found.append(f"the names of the pods of {last} are too long")
        if "podFailurePolicy" in job and pod["restartPolicy"] != "Never":
            found.append("podFailurePolicy needs restartPolicy Never")
        names = {container["name"] for container in pod["containers"]}
        volumes = {volume["name"] for volume in pod.get("volumes", ())}
        for rule in job.get("podFailurePolicy", {}).get("rules", ()):
            if ("onExitCodes" in rule) == ("onPodConditions" in rule):
                found.append("a rule must have one of onExitCodes and onPodConditions")
            codes = rule.get("onExitCodes", {"containerName": "", "values": []})
            if codes["containerName"] and codes["containerName"] not in names:
                found.append(f"there is no container {codes['containerName']}")
            if 0 in codes["values"]:
                found.append("exit code 0 cannot be in a rule")
        for container in pod["containers"]:
            for mount in container.get("volumeMounts", ()):
                if mount["name"] not in volumes:
                    found.append(f"there is no volume {mount['name']}")
    if job_set["spec"].get("failurePolicy", {}).get("maxRestarts", 0) < 0:
        found.append("maxRestarts is below 0")
    return found


class _Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        path = urllib.parse.urlsplit(self.path).path.rstrip("/")
        if path == "/api":
            self._answer({"kind": "APIVersions", "versions": ["v1"]})
        elif path == "/api/v1":
            self._answer({"kind": "APIResourceList", "groupVersion": "v1", "resources": []})
        elif path == "/apis":
            version = {"groupVersion": f"{GROUP}/{VERSION}", "version": VERSION}
            group = {"name": GROUP, "versions": [version], "preferredVersion": version}
            self._answer({"kind": "APIGroupList", "apiVersion": "v1", "groups": [group]})
        elif path == ROOT:
            resource = {
                "name": "jobsets",
                "singularName": "jobset",
                "namespaced": True,
                "kind": "JobSet",
                "verbs": ["create", "delete", "get", "list", "patch", "update"],
            }
            resource_list = {"kind": "APIResourceList", "groupVersion": f"{GROUP}/{VERSION}"}
            self._answer({**resource_list, "resources": [resource]})
        elif path == "/openapi/v3":
            self._answer({"paths": {ROOT[1:]: {"serverRelativeURL": f"/openapi/v3{ROOT}"}}})
        elif path == f"/openapi/v3{ROOT}":
            kind = {"group": GROUP, "version": VERSION, "kind": "JobSet"}
            patch = {"parameters": [{"name": "fieldValidation", "in": "query"}]}
            patch["x-kubernetes-group-version-kind"] = kind
            places = {f"{ROOT}/namespaces/{{namespace}}/jobsets/{{name}}": {"patch": patch}}
            self._answer(
                {"openapi": "3.0.0", "info": {"title": "", "version": ""}, "paths": places}
            )
        elif (found := self.server.job_sets.get(self._key(path))) is not None:
            self._answer(found)
        else:
            self._refuse(404, "NotFound", f"{path} not found")

    def do_PATCH(self):
        url = urllib.parse.urlsplit(self.path)
        asked = urllib.parse.parse_qs(url.query)
        length = int(self.headers["Content-Length"])
        job_set = yaml.safe_load(self.rfile.read(length))
        if asked.get("fieldValidation") != ["Strict"]:
            return self._refuse(400, "BadRequest", "this server wants strict validation")
        wrong = problems(job_set, JOB_SET) or refusals(job_set)
        before = self.server.job_sets.get(self._key(url.path))
        if before is not None and not wrong and before["spec"] != job_set["spec"]:
            wrong = ["spec: field is immutable"]
        if wrong:
            return self._refuse(422, "Invalid", "; ".join(wrong))
        self.server.job_sets[self._key(url.path)] = job_set | {"status": {}}
        self._answer(job_set, 200 if before else 201)

    def do_DELETE(self):
        path = urllib.parse.urlsplit(self.path).path
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.server.job_sets.pop(self._key(path), None) is None:
            return self._refuse(404, "NotFound", f"{path} not found")
        self._answer({"kind": "Status", "apiVersion": "v1", "status": "Success"})

    def _key(self, path):
        match = re.fullmatch(f"{ROOT}/namespaces/([^/]+)/jobsets/([^/]+)", path)
        return match and match.groups()

    def _refuse(self, code, reason, message):
        status = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code}
        self._answer({**status, "reason": reason, "message": message}, code)

    def _answer(self, value, code=200):
        body = json.dumps(value).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


@contextlib.contextmanager
def serving():
    """Serve a cluster; yield its address, and its JobSets by namespace and name."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    server.job_sets = {}
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", server.job_sets
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def write_configuration(path, address):
    """Write what KUBECONFIG leads kubectl to a server with; its context is called lab."""
    kubeconfig = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "lab",
        "contexts": [{"name": "lab", "context": {"cluster": "lab", "user": "me"}}],
        "clusters": [{"name": "lab", "cluster": {"server": address}}],
        "users": [{"name": "me", "user": {}}],
    }
    path.write_text(json.dumps(kubeconfig))
