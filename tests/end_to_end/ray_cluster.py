"""A Ray cluster of nodes that are processes of this machine and say that they have TPUs."""

import contextlib
import os
import pathlib

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]
MEMORY = 100 << 20


def environment():
    """Return the variables of all nodes: they import this checkout, and may start slowly."""
    search = [str(REPOSITORY / "framework"), str(REPOSITORY)]
    return {
        "PYTHONPATH": os.pathsep.join(search),
        "RAY_raylet_start_wait_time_s": "180",
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
        "RAY_USAGE_STATS_ENABLED": "0",
    }


@contextlib.contextmanager
def cluster():
    """Start a head without resources; yield what adds nodes to it."""
    import ray
    from ray.cluster_utils import Cluster

    made = Cluster(
        initialize_head=True,
        head_node_args={
            "num_cpus": 0,
            "include_dashboard": False,
            "object_store_memory": MEMORY,
        },
    )
    try:
        yield made
    finally:
        ray.shutdown()
        made.shutdown()


def add_tpu_host(made, slice_name, worker, accelerator, topology):
    """Add a host of a slice of v6e TPUs, with four chips that it has not."""
    resources = {"TPU": 4}
    if worker == 0:
        resources[f"TPU-{accelerator}-head"] = 1
    return made.add_node(
        env_vars={
            "TPU_NAME": slice_name,
            "TPU_WORKER_ID": str(worker),
            "TPU_ACCELERATOR_TYPE": accelerator,
            "TPU_TOPOLOGY": topology,
        },
        num_cpus=1,
        resources=resources,
        object_store_memory=MEMORY,
        labels={
            "ray.io/tpu-slice-name": slice_name,
            "ray.io/tpu-worker-id": str(worker),
            "ray.io/tpu-topology": topology,
            "ray.io/tpu-pod-type": accelerator,
            "ray.io/accelerator-type": "TPU-V6E",
        },
    )


def nodes_of(kind):
    """Return the nodes on which living actors of a class are."""
    from ray._private.state import actors

    return [
        actor["Address"]["NodeID"]
        for actor in actors().values()
        if actor["ActorClassName"] == kind and actor["State"] == "ALIVE"
    ]
