import pytest

from luthier.errors import RunError
from luthier.records.object_storage import Mirror, bring_back, fetch


@pytest.fixture
def copied(run, bucket, save):
    """Return the files of a run that is copied, as its copy should give them back."""
    save(10, "old")
    save(20, "new")
    made = Mirror(run, bucket, print)
    made.close()
    files = {path.relative_to(run).as_posix(): path for path in run.rglob("*") if path.is_file()}
    del files["lock"]
    return {name: path.read_bytes() for name, path in files.items()}


def _files(place):
    paths = [path for path in place.rglob("*") if path.is_file()]
    return {path.relative_to(place).as_posix(): path.read_bytes() for path in paths}


def test_a_run_comes_back_as_it_was(copied, bucket, tmp_path):
    place = tmp_path / "elsewhere" / "lab" / "ab12"
    assert fetch(place, bucket)
    assert _files(place) == copied
    assert not fetch(place, bucket), "it is there already"
    assert [path.name for path in place.parent.iterdir()] == ["ab12"]


def test_half_a_checkpoint_stays_where_it_is(copied, bucket, tmp_path):
    bucket.delete("checkpoints/20/commit.json")
    place = tmp_path / "elsewhere" / "lab" / "ab12"
    assert fetch(place, bucket)
    assert _files(place) == {n: b for n, b in copied.items() if "/20/" not in n}


def test_where_there_is_no_copy_nothing_is_made(bucket, tmp_path):
    assert not fetch(tmp_path / "elsewhere" / "lab" / "ab12", bucket)
    assert not (tmp_path / "elsewhere").exists()


def test_what_the_disk_refuses_is_one_line_and_leaves_nothing(copied, bucket, tmp_path):
    (tmp_path / "elsewhere").write_text("")
    with pytest.raises(RunError, match=r"^cannot create .*: Not a directory"):
        fetch(tmp_path / "elsewhere" / "lab" / "ab12", bucket)


def test_the_environment_says_where_the_copy_is(copied, run, tmp_path, monkeypatch):
    place = tmp_path / "elsewhere" / "lab" / "ab12"
    monkeypatch.delenv("LUTHIER_MIRROR", raising=False)
    assert not bring_back(place)
    monkeypatch.setenv("LUTHIER_MIRROR", f"file://{tmp_path}/empty")
    assert not bring_back(place)
