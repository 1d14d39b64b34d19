"""Settings of the whole test session: eight virtual CPU devices, a cache of programs, workers."""

import atexit
import gc
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import hypothesis
import jax
import pytest

import luthier

# A busy machine is no fault of a test: pytest's own limit of time is for what never ends.
hypothesis.settings.register_profile("luthier", hypothesis.settings(), deadline=None)
hypothesis.settings.load_profile("luthier")

jax.config.update("jax_num_cpu_devices", 8)
# As the command does before it imports an experiment: modules of tests make nodes at once.
luthier.install()

# Many tests compile the same small programs: each is compiled once a session, by one worker.
_VARIABLE = "LUTHIER_TESTS_CACHE"
if _VARIABLE not in os.environ:
    os.environ[_VARIABLE] = tempfile.mkdtemp(prefix="luthier-tests-")
    atexit.register(shutil.rmtree, os.environ[_VARIABLE], ignore_errors=True)
# Processes that tests start share it, as those of a user share theirs.
os.environ["JAX_COMPILATION_CACHE_DIR"] = os.environ[_VARIABLE]
os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0.1"
jax.config.update("jax_compilation_cache_dir", os.environ[_VARIABLE])
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.1)
jax.config.update("jax_persistent_cache_min_entry_size_bytes", 0)

_LARGE = 3 * 2**30  # of resident bytes: a worker that only adds up programs reaches 7 GiB
_QUICKLY = "--xla_backend_optimization_level=0"


def pytest_configure(config):
    """Have XLA compile the ordinary tests quickly: each of their programs runs a few times at most.

    It is the last stage alone, of machine code, that is left out, and nearly half of the time.
    Without XLA's emitters of fused kernels, too, compiling would take a third of that, but then
    what unoptimized code contracts, and so its bits, depends on what stands around it.
    `.ci/run --slow` runs them once more as users compile, for what is claimed of bits.
    """
    quick = ("not slow and not full", "full and not slow", "not slow")
    if config.getoption("markexpr") in quick and "XLA_FLAGS" not in os.environ:
        os.environ["XLA_FLAGS"] = _QUICKLY


def pytest_xdist_auto_num_workers(config):
    """Share the whole suite, or whole rooms, among the cores; run single files in this process."""
    if any(Path(argument.partition("::")[0]).is_file() for argument in config.args):
        return 0
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()


@pytest.fixture(scope="session", autouse=True)
def _own_folders_are_trusted(tmp_path_factory):
    """Let tests go on with what they made in their folders, which lie in no project."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LUTHIER_TRUST", str(tmp_path_factory.getbasetemp().resolve()))
        yield


@pytest.fixture
def read_wandb():
    """Read a .wandb file with wandb's own inspector, in a process of its own."""

    def read(directory):
        (path,) = directory.glob("*.wandb")
        command = [sys.executable, "-m", "wandb", "leet", "inspect", "--json", str(path)]
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
        contents = {"history": [], "summary": {}, "config": {}, "metrics": {}, "exit": None}
        for line in done.stdout.splitlines():
            record = json.loads(line)
            body = record.get(record["type"], {})
            if record["type"] == "run":
                contents["run"] = body
                contents["config"].update(body.get("config", {}).get("update", {}))
            elif record["type"] == "config":
                contents["config"].update(body.get("update", {}))
            elif record["type"] == "history":
                contents["history"].append(body["item"])
            elif record["type"] == "summary":
                contents["summary"].update(body.get("update", {}))
            elif record["type"] == "metric":
                contents["metrics"][body["name"]] = body.get("summary", {})
            elif record["type"] == "exit":
                contents["exit"] = body.get("exit_code", 0)
        return contents

    return read


# Tests that are not for everybody at every change, by file: a line names a file, a test with all of
# its parameters, or one node id. A mark in the test itself serves as well.
_TIERS = {name: Path(__file__).with_name(f"{name}.txt") for name in ("slow", "full")}


def _parts_of(nodeid):
    """Return what a line may name of a test: its file, the test, and the test with parameters."""
    return {nodeid, nodeid.partition("[")[0], nodeid.partition("::")[0]}


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config, items):
    """Mark the tests of full.txt and slow.txt; refuse a line that names no test any more."""
    whole = not any("::" in argument for argument in config.args)
    files = {item.nodeid.partition("::")[0] for item in items} if whole else set()
    parts = {item.nodeid: _parts_of(item.nodeid) for item in items}
    every = set().union(*parts.values())
    for tier, path in _TIERS.items():
        lines = path.read_text(encoding="utf-8").splitlines()
        names = {line for line in lines if line and not line.startswith("#")}
        for item in items:
            # What is slow is run at night only, whatever else it is.
            if parts[item.nodeid] & names and not item.get_closest_marker("slow"):
                item.add_marker(tier)
        stale = {name for name in names - every if name.partition("::")[0] in files}
        if stale:
            raise pytest.UsageError(f"{path} names no test: {', '.join(sorted(stale))}")


@pytest.fixture(autouse=True, scope="module")
def _memory_stays_bounded():
    """Drop the compiled programs of earlier modules once a worker has grown large."""
    yield
    if _resident_bytes() > _LARGE:
        jax.clear_caches()
        gc.collect()


def _resident_bytes():
    """Return what this process holds of the memory; 0 where /proc does not tell."""
    statm = Path("/proc/self/statm")
    return int(statm.read_text().split()[1]) * os.sysconf("SC_PAGESIZE") if statm.exists() else 0
