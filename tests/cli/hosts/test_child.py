import subprocess
import sys
import time

import pytest

PROGRAM = """
import os, sys
from luthier.cli import hosts
def main(argv):
    print("said", *argv)
    os.write(1, b"by a library\\n")
    return 75
hosts.command_line.main = main
hosts.main(["train", "tiny"])
"""


def test_the_terminal_is_for_what_python_prints_and_the_code_is_passed_on():
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (75, "said train tiny\n")
    assert "by a library" in done.stderr


@pytest.mark.full
def test_an_orphan_is_asked_to_save_and_ends():
    orphan = """
import os, signal, sys, time
from luthier.cli import hosts
signal.signal(signal.SIGTERM, lambda number, frame: (print("saved", flush=True), os._exit(0)))
hosts.command_line.main = lambda argv: (print("began", flush=True), time.sleep(60))
hosts.main([])
"""
    between = f"""
import subprocess, sys, time
subprocess.Popen([sys.executable, "-c", {orphan!r}])
time.sleep(3)
"""
    start = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", between], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.stdout == "began\nsaved\n"
    assert time.monotonic() - start < 50
