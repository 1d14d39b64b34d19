"""The controller of JobSets and the nodes of a cluster, on this machine: pods are processes here.

It does what a group relies on. All pods of a JobSet end together; where one fails, all are made
anew, at most as often as the JobSet says; a failure that the policy of pods names (exit code 75) is
not counted. What is deleted hears SIGTERM. There is no network of pods: groups of one host.
"""

import os
import signal
import subprocess
import sys

from meanwhile import Meanwhile


class Controller(Meanwhile):
    """Runs the pods of all JobSets within the `with` block.

    Args:
      job_sets: JobSets by namespace and name, as the API server keeps them.
    """

    def __init__(self, job_sets):
        super().__init__()
        self._job_sets, self._pods = job_sets, {}
        self.restarts = 0

    def __exit__(self, *unused):
        super().__exit__()
        for key in list(self._pods):
            self._end(key)

    def run(self):
        while not self._over.wait(0.05):
            for key in self._pods.keys() - self._job_sets.keys():
                self._end(key)
            for key, job_set in list(self._job_sets.items()):
                if not job_set["status"].get("conditions"):
                    self._tend(key, job_set)

    def _tend(self, key, job_set):
        """Start the pods of a JobSet, or look at them."""
        if key not in self._pods:
            self._pods[key] = _pods(job_set)
            job_set["status"] |= {"replicatedJobsStatus": [{"name": "group", "ready": 1}]}
        codes = [pod.poll() for pod in self._pods[key]]
        if all(code == 0 for code in codes):
            job_set["status"]["conditions"] = [{"type": "Completed", "status": "True"}]
        failed = next((code for code in codes if code), None)
        if failed is None:
            return
        self._end(key)
        (job,) = job_set["spec"]["replicatedJobs"]
        rules = job["template"]["spec"]["podFailurePolicy"]["rules"]
        named = [
            code for rule in rules for code in rule.get("onExitCodes", {"values": []})["values"]
        ]
        counted = job_set["status"].get("counted", 0) + (failed not in named)
        if counted > job_set["spec"]["failurePolicy"]["maxRestarts"]:
            condition = {"type": "Failed", "status": "True", "message": "too many restarts"}
            job_set["status"]["conditions"] = [condition]
            return
        self.restarts += 1
        restarts = job_set["status"].get("restarts", 0) + 1
        job_set["status"] = {"restarts": restarts, "counted": counted}

    def _end(self, key):
        pods = self._pods.pop(key)
        for pod in pods:
            if pod.poll() is None:
                os.killpg(pod.pid, signal.SIGTERM)
        for pod in pods:
            try:
                pod.wait(20)
            except subprocess.TimeoutExpired:
                os.killpg(pod.pid, signal.SIGKILL)
                pod.wait()


def _pods(job_set):
    """Return the pods of a JobSet, started."""
    (job,) = job_set["spec"]["replicatedJobs"]
    spec = job["template"]["spec"]
    (container,) = spec["template"]["spec"]["containers"]
    variables = {variable["name"]: variable["value"] for variable in container["env"]}
    path = f"{os.path.dirname(sys.executable)}:{os.environ['PATH']}"  # the image has luthier
    return [
        subprocess.Popen(
            [*container["command"], *container["args"]],
            env=os.environ | {"PATH": path, "JOB_COMPLETION_INDEX": str(index)} | variables,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        for index in range(spec["completions"])
    ]
