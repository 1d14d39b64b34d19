import dataclasses
import socket
import stat
import threading

import pytest

from luthier.errors import RunError
from luthier.launch import link


@pytest.fixture
def driver(tmp_path):
    """Return a listening driver: its socket, its address, and the file that says where it is."""
    listening, address = link.listen("127.0.0.1")
    path = tmp_path / "driver.json"
    address.write(path)
    with listening:
        yield listening, address, path


def _meet(driver, secret=None):
    """Greet whoever connects, in a thread; return the list that gets the outcome."""
    listening, address, _ = driver
    found = []

    def greet():
        connection, _ = listening.accept()
        found.append(link.greet(connection, secret or address.secret))

    thread = threading.Thread(target=greet)
    thread.start()
    return found, thread


def test_both_sides_that_know_the_secret_speak(driver):
    found, thread = _meet(driver)
    mine = link.connect(driver[2], {"slice": 3}, 10.0)
    thread.join(10)
    theirs, about = found[0]
    assert about == {"slice": 3}
    mine.sent.write(b"hello\n")
    mine.sent.flush()
    assert theirs.received.readline() == b"hello\n"
    theirs.cut()
    assert mine.received.readline() == b""
    mine.cut()


def test_only_its_owner_reads_the_secret_which_is_new_each_time(driver):
    assert stat.S_IMODE(driver[2].stat().st_mode) == 0o600
    listening, other = link.listen()
    listening.close()
    assert other.secret != driver[1].secret
    assert "127.0.0.1" in other.hosts
    assert link.Address.read(driver[2]) == dataclasses.replace(driver[1])


def test_a_worker_without_the_secret_is_turned_away(driver):
    wrong = dataclasses.replace(driver[1], secret="0" * 64)
    wrong.write(driver[2])
    found, thread = _meet(driver)
    assert link.connect(driver[2], {"slice": 0}, 0.0) is None
    thread.join(10)
    assert found == [None]


def test_a_driver_without_the_secret_is_not_believed(driver):
    _, thread = _meet(driver, secret="1" * 64)
    assert link.connect(driver[2], {"slice": 0}, 0.0) is None
    thread.join(10)


def test_whoever_speaks_otherwise_is_cut_off(driver):
    found, thread = _meet(driver)
    with socket.create_connection(("127.0.0.1", driver[1].port)) as stranger:
        stranger.sendall(b"GET / HTTP/1.1\n")
        thread.join(10)
    assert found == [None]


def test_no_driver_any_more(driver, tmp_path):
    assert link.connect(tmp_path / "gone.json", {}, 5.0) is None
    (tmp_path / "torn.json").write_text("{")
    with pytest.raises(RunError, match=r"^cannot read where the driver is: "):
        link.connect(tmp_path / "torn.json", {}, 0.0)
    driver[0].close()
    assert link.connect(driver[2], {}, 0.0) is None
