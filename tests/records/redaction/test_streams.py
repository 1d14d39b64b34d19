"""What a process prints into a kept file has no secrets in it."""

import io
import subprocess
import sys
import threading

import pytest

from luthier.records import Redacted

SECRET = "hf_planted-0123456789"
SCRIPT = """
import os, sys, warnings
from luthier.records import redact_output
redact_output()
redact_output()
secret = os.environ["HF_TOKEN"]
print("one", secret, "two")
sys.stderr.write(secret[:5]); sys.stderr.write(secret[5:] + "\\n")
warnings.warn(f"cannot log in with {secret}")
print("without an end", secret, end="")
sys.stdout.flush()
raise ValueError(f"https://user:{secret}@host and {secret}")
"""


@pytest.fixture
def written(monkeypatch):
    monkeypatch.setenv("HF_TOKEN", SECRET)
    return io.StringIO()


def test_a_secret_that_comes_in_pieces_is_found(written):
    stream = Redacted(written)
    for letter in f"a {SECRET} b\nc {SECRET}":
        assert stream.write(letter) == 1
    assert written.getvalue() == "a [HF_TOKEN] b\n"
    stream.flush()
    assert written.getvalue() == "a [HF_TOKEN] b\nc [HF_TOKEN]"


def test_it_is_otherwise_the_stream(written):
    stream = Redacted(written)
    stream.writelines(["a\nb", "\n\nc\n"])
    assert written.getvalue() == "a\nb\n\nc\n"
    assert stream.encoding == written.encoding
    assert not stream.isatty()


def test_threads_do_not_mix_their_lines(written):
    stream = Redacted(written)
    lines = [f"{number}: {SECRET}\n" for number in range(8)]
    threads = [threading.Thread(target=lambda line=line: stream.write(line * 50)) for line in lines]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    lines = written.getvalue().splitlines()
    expected = [f"{number}: [HF_TOKEN]" for number in range(8) for _ in range(50)]
    assert sorted(lines) == sorted(expected)


def test_prints_warnings_and_tracebacks_of_a_process_hold_no_secret(written):
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert SECRET not in done.stdout
    assert "one [HF_TOKEN] two" in done.stdout
    assert "cannot log in with [HF_TOKEN]" in done.stdout
    assert "without an end [HF_TOKEN]" in done.stdout
    assert "ValueError: https://***@host and [HF_TOKEN]" in done.stdout
