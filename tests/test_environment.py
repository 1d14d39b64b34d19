"""The environment of a process that computes: asked for where it helps, obeyed where it is set."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from luthier import environment

ASKED = "always [madvise] never\n"
GLIBC = ("glibc", "2.36")


@pytest.mark.parametrize(
    ("variables", "modes", "c_library", "wanted"),
    [
        ({}, ASKED, GLIBC, "glibc.malloc.hugetlb=1"),
        (
            {"GLIBC_TUNABLES": "glibc.malloc.arena_max=2"},
            ASKED,
            GLIBC,
            "glibc.malloc.arena_max=2:glibc.malloc.hugetlb=1",
        ),
        ({"GLIBC_TUNABLES": "glibc.malloc.hugetlb=0"}, ASKED, GLIBC, None),
        ({}, "[always] madvise never\n", GLIBC, None),
        ({}, "always madvise [never]\n", GLIBC, None),
        ({}, "", GLIBC, None),
        ({}, ASKED, ("glibc", "2.34"), None),
        ({}, ASKED, ("", ""), None),
    ],
)
def test_large_pages(variables, modes, c_library, wanted):
    found = environment.large_pages(variables, modes, c_library)
    assert found == ({"GLIBC_TUNABLES": wanted} if wanted else {})


# Touches 64 MiB that the C library maps, and counts the pages that came one by one.
FAULTS = """
import ctypes, resource
library = ctypes.CDLL(None)
library.malloc.restype = ctypes.c_void_p
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
ctypes.memset(library.malloc(ctypes.c_size_t(2**26)), 1, 2**26)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def test_the_c_library_does_as_it_is_asked():
    inherited = {name: value for name, value in os.environ.items() if name != "GLIBC_TUNABLES"}
    asked = environment.large_pages(inherited)
    if not asked:
        pytest.skip("large pages come unasked here, or not at all")

    def num_faults(variables):
        command = [sys.executable, "-c", FAULTS]
        done = subprocess.run(command, env=variables, capture_output=True, text=True, check=True)
        return int(done.stdout)

    assert num_faults(inherited) > 10_000
    assert num_faults(inherited | asked) < 5_000


def test_programs_are_kept_apart_by_kind_of_processor():
    found = environment.kept_programs({"XDG_CACHE_HOME": "/cache"}, shortest=0.1)
    assert Path(found["JAX_COMPILATION_CACHE_DIR"]).parent == Path("/cache/luthier/compiled")
    assert found["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] == "0.1"
    assert environment.kept_programs({"JAX_COMPILATION_CACHE_DIR": "/mine"}, 0.1) == {}
    assert environment.kept_programs({"JAX_COMPILATION_CACHE_DIR": ""}, 0.1) == {}


@pytest.mark.full
def test_a_second_process_finds_what_the_first_compiled(tmp_path):
    variables = environment.kept_programs({"XDG_CACHE_HOME": str(tmp_path)}, shortest=0)
    program = (
        "import jax, logging; logging.basicConfig(level=logging.DEBUG); "
        "print(jax.jit(lambda x: x * 3 + 1)(2))"
    )

    def log():
        done = subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, **variables, "JAX_PLATFORMS": "cpu"},
            capture_output=True,
            text=True,
            check=True,
        )
        assert done.stdout == "7\n"
        return done.stderr

    assert "Persistent compilation cache hit" not in log()
    assert "Persistent compilation cache hit" in log()


def test_the_oldest_programs_go_first(tmp_path):
    for number, name in enumerate(["old", "middle", "new"]):
        (tmp_path / name).write_bytes(bytes(100))
        os.utime(tmp_path / name, (number, number))
    environment.drop_oldest(str(tmp_path), most_bytes=300)
    assert len(list(tmp_path.iterdir())) == 3
    environment.drop_oldest(str(tmp_path), most_bytes=150)
    assert [path.name for path in tmp_path.iterdir()] == ["new"]
    environment.drop_oldest(str(tmp_path / "nowhere"))


ASKING = """
import os, subprocess, sys, time
worker = subprocess.Popen([sys.executable, "-P", "-m", sys.argv[1], str(os.getpid())])
print(worker.pid, flush=True)
time.sleep(600)
"""


def _is_running(pid):
    """Return whether a process computes: one that ended may wait for its parent to notice."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.full
@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="the system has no /proc")
@pytest.mark.parametrize("module", ["luthier.planner.worker", "luthier.study.gate"])
def test_a_process_that_answers_ends_with_the_one_that_asks(module):
    """Its questions never end: this process holds the other end of the pipe."""
    command = [sys.executable, "-c", ASKING, module]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, **pipes) as asking:
        worker = int(asking.stdout.readline())
        time.sleep(1.0)
        assert _is_running(worker)
        asking.kill()
        asking.wait()
        deadline = time.monotonic() + 60
        while _is_running(worker) and time.monotonic() < deadline:
            time.sleep(0.1)
        assert not _is_running(worker)
