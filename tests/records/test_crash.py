import errno
import signal
import subprocess
import sys

import jax

from luthier import user_code
from luthier.errors import RunError
from luthier.records import crash


def fails(secret):
    raise OSError(errno.ENOSPC, "No space left on device")


def raised(call, *arguments):
    try:
        try:
            call(*arguments)
        except OSError as error:
            raise RunError("cannot write a file") from error
    except RunError as error:
        return error


def test_an_exception_is_written_down_once_with_the_state_of_the_machine(tmp_path, monkeypatch):
    monkeypatch.setenv("MY_API_KEY", "hunter2hunter2")
    monkeypatch.setattr("sys.argv", ["luthier", "train", "--key", "hunter2hunter2"])
    assert len(jax.local_devices()) > 0
    error = raised(fails, "x")
    path = crash.write(tmp_path / "run", error, step=7, phase="step", process=1)
    assert path == crash.write(tmp_path / "run", error), "once for each exception"
    assert path == crash.newest(tmp_path / "run") == crash.path_of(error)
    other = crash.write(tmp_path / "run", raised(fails, "x"), process=1)
    assert other != path, "a second one in the same second"
    assert path.parent == tmp_path / "run" / "crash"
    assert path.name.endswith("-process-1.txt")
    text = path.read_text()
    for line in ("error: cannot write a file", "fault: place", "step: 7", "phase: step"):
        assert f"{line}\n" in text
    for name in ("versions: ", "memory VmRSS: ", "memory VmHWM: ", "device ", "host: "):
        assert f"\n{name}" in text
    assert "command: luthier train --key [MY_API_KEY]\n" in text
    assert "hunter2" not in text
    first, _, second = text.partition("The above exception was the direct cause of")
    assert "OSError: [Errno 28]" in first
    assert ", in fails\n" in first
    assert "luthier.errors.RunError: cannot write a file" in second
    place = f"{__file__}:{fails.__code__.co_firstlineno + 1}, in fails"
    assert place.endswith(user_code.place(error))
    assert f"raised in: {user_code.place(error)}\n" in text


def test_what_cannot_be_written_hides_no_error(tmp_path):
    class Unspeakable(Exception):
        def __str__(self):
            raise ValueError

    assert crash.write(tmp_path, Unspeakable()) is None
    (tmp_path / "file").write_text("")
    assert crash.write(tmp_path / "file", ValueError()) is None
    assert crash.newest(tmp_path / "file") is None


def test_the_last_words_of_a_log_are_a_line_that_says_something_or_where_the_stacks_are(tmp_path):
    log = tmp_path / "log"
    assert crash.last_words(log) == ""
    log.write_text("first\nOSError:  it   broke\n \n\n")
    assert crash.last_words(log) == "OSError: it broke"
    command = [sys.executable, "-X", "faulthandler", "-c", "import faulthandler as f; f._sigsegv()"]
    with open(log, "ab") as file:
        assert subprocess.run(command, stderr=file).returncode == -signal.SIGSEGV
    assert crash.last_words(log) == f"Segmentation fault; stacks: {log}"
    end = log.stat().st_size
    assert crash.last_words(log, end) == ""
    with open(log, "a") as file:
        file.write("luthier: the next one\n")
    assert crash.last_words(log) == "luthier: the next one"
