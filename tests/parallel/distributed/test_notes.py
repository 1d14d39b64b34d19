from luthier.parallel.distributed import NOTES_VARIABLE, Notes, notify_parent


def test_notes_are_added_and_read(tmp_path, monkeypatch):
    kept = Notes(tmp_path / "process-0.json")
    assert kept.read() == {}
    monkeypatch.setenv(NOTES_VARIABLE, str(kept.path))
    notify_parent(run="runs/a/b", process=1)
    notify_parent(process=0)
    assert kept.read() == {"run": "runs/a/b", "process": 0}
    assert [path.name for path in tmp_path.iterdir()] == ["process-0.json"]


def test_without_a_parent_nothing_is_written(tmp_path, monkeypatch):
    monkeypatch.delenv(NOTES_VARIABLE, raising=False)
    monkeypatch.chdir(tmp_path)
    notify_parent(run="runs/a/b")
    assert not list(tmp_path.iterdir())
