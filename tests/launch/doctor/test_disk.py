import pytest

from luthier.errors import RunError
from luthier.launch import doctor
from luthier.parallel import distributed


def test_a_disk_is_written_and_read_and_left_as_it_was(tmp_path, monkeypatch):
    monkeypatch.setattr(doctor, "_BYTES", 8 << 20)
    rates = doctor.disk_rates(tmp_path / "runs" / "of" / "mine")
    assert 1e5 < rates.write < 1e12
    assert 1e5 < rates.read < 1e12
    assert list(tmp_path.iterdir()) == []


def test_a_disk_that_refuses_is_one_line(tmp_path, monkeypatch):
    def full(**_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(doctor.tempfile, "TemporaryFile", full)
    with pytest.raises(RunError) as refusal:
        doctor.disk_rates(tmp_path)
    assert str(refusal.value) == (
        f"cannot write {tmp_path}: No space left on device; free space on that disk, then rerun "
        "the same command"
    )


@pytest.fixture
def asked(monkeypatch):
    """Return what is told to the others, who are not there."""
    found = []
    monkeypatch.setattr(distributed, "is_several", lambda: True)
    monkeypatch.setattr(distributed, "gather", found.append)
    return found


def test_a_shared_folder_is_found_by_a_file_in_it(tmp_path, monkeypatch, asked):
    monkeypatch.setattr(distributed, "from_primary", lambda make: make())
    assert doctor.is_shared(tmp_path / "runs")
    assert (asked, list(tmp_path.iterdir())) == ([None], [])


def test_a_folder_of_its_own_lacks_the_file_of_process_0(tmp_path, monkeypatch, asked):
    monkeypatch.setattr(distributed, "from_primary", lambda make: ".luthier-doctor-elsewhere")
    assert not doctor.is_shared(tmp_path)
    assert asked == [None]


def test_alone_every_folder_is_that_of_process_0(tmp_path):
    assert doctor.is_shared(tmp_path)
