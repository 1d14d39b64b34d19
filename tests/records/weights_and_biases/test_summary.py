"""The W&B run that sums many runs up, written by the real wandb and read by its own inspector."""

import pytest

from luthier import records
from luthier.errors import RunError


def _summary(**changes):
    given = {
        "name": "all",
        "group": "them",
        "config": {"rate": 0.1},
        "columns": ["trial", "loss", "note"],
        "rows": [[0, 2.0, ""], [1, None, "did not fit"]],
        "history": [{"trial": 0, "objectives/loss": 2.0}, {"trial": 2, "objectives/loss": 1.0}],
        "key": "trial",
        "better": {"objectives/loss": "lower"},
        "facts": {"best_trial": 2},
        "pages": {},
    }
    return records.Summary(**{**given, **changes})


@pytest.mark.full
def test_wandb_takes_a_summary_offline_and_a_second_one_replaces_it(
    tmp_path, monkeypatch, read_wandb
):
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.chdir(tmp_path.parent)
    (tmp_path / "report.html").write_text("<p>a report</p>")
    summary = _summary(pages={"report": f"{tmp_path.name}/report.html"})  # as a command has it
    ids = set()
    for _ in range(2):
        mirrored = records.mirror_summary(records.Wandb(tags=("a",)), tmp_path, summary)
        (directory,) = (tmp_path / "wandb").glob("offline-run-*")
        ids.add(directory.name.rpartition("-")[2])
    assert mirrored.mode == "offline"
    assert mirrored.path == str(directory)
    assert len(ids) == 1
    found = read_wandb(directory)
    assert found["run"]["run_group"] == "them"
    assert found["run"]["job_type"] == "summary"
    assert found["run"]["display_name"] == "all"
    assert found["exit"] == 0
    assert found["summary"]["best_trial"] == 2
    losses = [row["objectives/loss"] for row in found["history"] if "objectives/loss" in row]
    assert losses == [2.0, 1.0]
    (page,) = directory.glob("files/media/html/report*.html")
    assert page.read_text() == "<p>a report</p>"
    (table,) = directory.glob("files/media/table/runs*.json")
    assert '[1,null,"did not fit"]' in table.read_text()


def test_a_summary_that_is_written_again_drops_no_row(tmp_path, monkeypatch, fake):
    """Online, W&B takes rows of steps that it does not have."""
    monkeypatch.setenv("WANDB_MODE", "online")
    monkeypatch.setenv("WANDB_API_KEY", "x" * 40)
    kept = []  # of the server: the trial of each row, None for one that has only tables
    for trials in ([0, 2], [0, 2], [0, 1, 2, 3]):
        if kept:
            monkeypatch.setenv("FAKE_WANDB_STEP", str(len(kept)))
        known = len(fake("log"))
        history = [{"trial": trial, "objectives/loss": 1.0} for trial in trials]
        records.mirror_summary(records.Wandb(), tmp_path, _summary(history=history))
        for call in fake("log")[known:]:
            assert call["step"] in (len(kept), len(kept) - 1)
            if call["step"] == len(kept):
                kept.append(call["row"].get("trial"))
    assert kept == [0, 2, None, 1, 3]


def test_nothing_is_made_where_wandb_is_off(tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "disabled")
    assert records.mirror_summary(records.Wandb(), tmp_path, _summary()) is None
    assert not list(tmp_path.glob("wandb*"))


@pytest.mark.full
def test_what_goes_wrong_is_one_line(tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "offline")
    pages = {"report": str(tmp_path / "absent.html")}
    with pytest.raises(RunError) as raised:
        records.mirror_summary(records.Wandb(), tmp_path, _summary(pages=pages))
    (line,) = str(raised.value).splitlines()
    assert line.startswith(f"W&B cannot mirror {tmp_path}: ")
    assert "absent.html" in line
    assert line.endswith("mirror.log")
