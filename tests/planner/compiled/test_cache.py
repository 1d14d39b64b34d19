import pytest

from luthier.planner import process


@pytest.fixture(autouse=True)
def _own_folder(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def test_what_was_kept_is_read_again(tmp_path):
    assert process.read("k") is None
    process.write("k", {"parts": {"level": "compile"}})
    assert process.read("k") == {"parts": {"level": "compile"}}
    assert process.folder() == tmp_path / "luthier" / "plan"


def test_what_is_damaged_is_as_if_it_was_not_there():
    process.write("k", {"a": 1})
    file = process.folder() / "k.json.gz"
    file.write_bytes(file.read_bytes()[:-4])
    assert process.read("k") is None


def test_the_name_is_of_the_program_the_slice_and_the_compiler():
    own = process.key_of("%0 = add loc(x)\n#loc1 = loc(y)", "v5e-16", {"jax": "1"})
    assert own == process.key_of("%0 = add loc(z)\n", "v5e-16", {"jax": "1"})
    others = [
        process.key_of("%0 = sub", "v5e-16", {"jax": "1"}),
        process.key_of("%0 = add", "v5e-32", {"jax": "1"}),
        process.key_of("%0 = add", "v5e-16", {"jax": "2"}),
    ]
    assert len({own, *others}) == 4


def test_a_folder_that_cannot_be_written_is_no_error(monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    process.write("k", {"a": 1})
    assert process.read("k") is None
