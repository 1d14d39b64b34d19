import pathlib
import subprocess
import sys
import threading
import time

import pytest

from luthier.launch.ray_actors import Member


def _run(tmp_path, code, **environment):
    log = tmp_path / "logs" / "rank-0.log"
    ended = Member().run(["-c", code], str(tmp_path), environment, str(log))
    return ended, log.read_text()


def test_a_process_runs_in_its_directory_and_prints_into_its_log(tmp_path):
    code = "import os, sys; print(os.getcwd(), os.environ['GREETING']); sys.exit(75)"
    assert _run(tmp_path, code, GREETING="hello") == (75, f"{tmp_path} hello\n")
    assert _run(tmp_path, "print('again')", GREETING="")[1].endswith("hello\nagain\n")


def test_it_is_asked_to_save_and_leave(tmp_path):
    code = """
import pathlib, signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(75))
pathlib.Path("ready").touch()
time.sleep(60)
"""
    member, codes = Member(), []
    member.end()  # nothing runs yet
    arguments = (["-c", code], str(tmp_path), {}, str(tmp_path / "log"))
    thread = threading.Thread(target=lambda: codes.append(member.run(*arguments)))
    thread.start()
    while not (tmp_path / "ready").exists():
        time.sleep(0.01)
    member.end()
    thread.join(30)
    assert codes == [75]
    member.end()  # it has ended


def _lives(process):
    try:
        return "Z" not in pathlib.Path(f"/proc/{process}/stat").read_text().split()
    except OSError:
        return False


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends orphans")
def test_a_process_dies_with_its_actor(tmp_path):
    code = """
from luthier.launch.ray_actors import Member
Member().run(["-c", "import os,time; open('pid','w').write(str(os.getpid())); time.sleep(60)"],
             ".", {}, "log")
"""
    actor = subprocess.Popen([sys.executable, "-c", code], cwd=tmp_path)
    path = pathlib.Path(tmp_path, "pid")
    while not (path.exists() and path.read_text()):
        assert actor.poll() is None
        time.sleep(0.01)
    actor.kill()
    actor.wait()
    process, deadline = int(path.read_text()), time.monotonic() + 10
    while _lives(process):
        assert time.monotonic() < deadline
        time.sleep(0.01)
