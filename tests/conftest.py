"""Settings of the whole test session: eight virtual CPU devices, a cache of programs, workers."""

import atexit
import os
import shutil
import tempfile
from pathlib import Path

import jax

jax.config.update("jax_num_cpu_devices", 8)

# Many tests compile the same small programs: each is compiled once a session, by one worker.
_VARIABLE = "LUTHIER_TESTS_CACHE"
if _VARIABLE not in os.environ:
    os.environ[_VARIABLE] = tempfile.mkdtemp(prefix="luthier-tests-")
    atexit.register(shutil.rmtree, os.environ[_VARIABLE], ignore_errors=True)
jax.config.update("jax_compilation_cache_dir", os.environ[_VARIABLE])
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.1)
jax.config.update("jax_persistent_cache_min_entry_size_bytes", 0)


def pytest_xdist_auto_num_workers(config):
    """Share the whole suite, or whole rooms, among the cores; run single files in this process."""
    if any(Path(argument.partition("::")[0]).is_file() for argument in config.args):
        return 0
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
