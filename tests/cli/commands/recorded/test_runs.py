from __future__ import annotations

import dataclasses
import json
import re

import pytest

from luthier.cli import main
from luthier.cli.commands.recorded import runs
from luthier.records import Run


def test_a_folder_without_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["runs"]) == 0
    assert "no runs" in capsys.readouterr().out


def test_a_folder_that_is_named_and_not_there(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["runs", "--directory", "elsewhere"]) == 2
    assert capsys.readouterr().err == "luthier: --directory: there is no folder 'elsewhere'\n"


def test_the_list(trained, monkeypatch, capsys):
    monkeypatch.chdir(trained)
    assert main(["runs"]) == 0
    heads, row = capsys.readouterr().out.splitlines()
    assert heads.split()[0] == "id"
    assert "tiny" in row
    assert "finished" in row
    assert "4/4" in row


def test_one_run(trained, monkeypatch, capsys):
    monkeypatch.chdir(trained)
    (run,) = (trained / "runs" / "tiny").iterdir()
    assert main(["runs", run.name[:5]]) == 0
    out = capsys.readouterr().out
    assert run.name in out
    assert "held_out/nats_per_byte" in out


def test_where_the_time_went(trained, monkeypatch, capsys):
    monkeypatch.chdir(trained)
    assert main(["runs", "last", "--goodput"]) == 0
    out = capsys.readouterr().out
    (run,) = (trained / "runs" / "tiny").iterdir()
    assert out.splitlines()[0].startswith(f"tiny/{run.name}: ")
    for kind in ("step", "evaluate", "save", "init", "compile", "total"):
        assert f"\n{kind} " in out
    assert main(["runs", "last", "--goodput", "--json"]) == 0
    account = json.loads(capsys.readouterr().out)
    assert sum(account["seconds"].values()) == pytest.approx(account["total_seconds"])
    assert account["seconds"].keys() >= {"step", "evaluate", "save", "init", "compile"}
    (process,) = account["processes"]
    assert (process["status"], process["restored"], process["reached"]) == ("finished", 0, 4)
    assert process["end"] - process["start"] == pytest.approx(account["total_seconds"], abs=0.01)
    assert account["seconds"].get("other", 0.0) < 0.1 * account["total_seconds"]


def test_the_size_of_a_run(trained, monkeypatch, capsys):
    monkeypatch.chdir(trained)
    (run,) = (trained / "runs" / "tiny").iterdir()
    files = [path for path in run.rglob("*") if path.is_file()]
    assert main(["runs", "last", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["size_bytes"] == sum(
        path.stat().st_size for path in files
    )


def test_json(trained, monkeypatch, capsys):
    monkeypatch.chdir(trained)
    assert main(["runs", "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert row["status"] == "finished"
    assert main(["runs", row["id"], "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["id"] == row["id"]


def test_runs_may_be_kept_elsewhere(trained, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["runs", "--directory", str(trained / "runs")]) == 0
    assert "tiny" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("value", "text"), [(None, ""), (1.23456789, "1.235"), (12345.6, "12,346"), (3, "3")]
)
def test_numbers(value, text):
    assert runs._number(value) == text


def test_durations():
    assert runs._duration(3661.5) == "1:01:01"


def _launched(run, id):
    from luthier.launch import Job, Slurm
    from luthier.launch import jobs as launches

    job = Job("slurm", id, "tiny", str(run))
    launches.make_launch(launches.new_folder(run), Slurm(), "luthier train", (), [job])


def test_a_launched_run_shows_its_state_in_the_queue(importable_project, monkeypatch, capsys):
    from luthier.launch import Slurm, Standing

    def never(engine, jobs):
        raise AssertionError("nothing was launched")

    monkeypatch.setattr(Slurm, "standings", never)
    _record([], "aa11")
    waits = _record(["seed=1"], "bb22").path
    for changed in (["--directory", "kept"], ["aa11", "--directory", "kept"]):
        assert main(["runs", *changed]) == 0
        assert "queue" not in capsys.readouterr().out
    asked = []

    def answer(engine, jobs):
        asked.append([job.id for job in jobs])
        return [Standing("waiting", "PENDING (Priority)", ("n1", "n2"))] * len(jobs)

    monkeypatch.setattr(Slurm, "standings", answer)
    _launched(waits, "12")
    _launched(waits, "13")  # the newest counts
    over = _record(["seed=2"], "cc33")
    over.write_status(dataclasses.replace(over.read_status(), status="finished"))
    _launched(over.path, "11")  # finished: no queue is asked for it
    assert main(["runs", "--directory", "kept"]) == 0
    head, *rows = capsys.readouterr().out.splitlines()
    assert head.split()[2:5] == ["status", "queue", "step"]
    place = head.index("queue")
    assert sorted((row.split()[0], row[place : place + 8].strip()) for row in rows) == [
        ("aa11", ""),
        ("bb22", "waiting"),
        ("cc33", "finished"),
    ]
    assert asked == [["13"]]
    assert main(["runs", "bb22", "--directory", "kept"]) == 0
    assert [line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines()[3:5]] == [
        ["queue", "waiting on n1, n2: job 13 of slurm"],
        ["PENDING", "(Priority)"],
    ]
    assert main(["runs", "bb22", "--json", "--directory", "kept"]) == 0
    assert json.loads(capsys.readouterr().out)["queue"] == {
        "engine": "slurm",
        "job": "13",
        "state": "waiting",
        "detail": "PENDING (Priority)",
        "hosts": ["n1", "n2"],
        "restarts": 0,
    }


def _record(overrides, id):
    from luthier import graph as graphs
    from luthier import records
    from luthier.trainer import configuration

    graph = graphs.apply(graphs.resolve("trials.tiny"), overrides)
    return records.RunDirectory.create("kept", "tiny", id, configuration=configuration(graph))


def test_what_differs_between_runs(importable_project, capsys):
    _record([], "aa11")
    _record(["seed=3"], "bb22")
    words = ["runs", "aa", "bb", "--diff", "--directory", "kept"]
    assert main(words) == 0
    assert capsys.readouterr().out.splitlines() == [
        "- tiny/aa11  (run tiny/aa11, created at step 0)",
        "+ tiny/bb22  (run tiny/bb22, created at step 0)",
        "1 change: 1 set",
        "└── ~ seed: 0 -> 3 (+3) (was left at its default)",
    ]
    assert main([*words, "--json"]) == 0
    assert [c["path"] for c in json.loads(capsys.readouterr().out)["changes"]] == ["seed"]
    _record(["seed=4"], "cc33")
    assert main([*words, "cc"]) == 0
    assert capsys.readouterr().out.splitlines()[-1].split() == ["seed", "0", "3", "4"]


def test_escape_sequences_in_the_code_of_a_run_are_shown(importable_project, capsys):
    name, texts = "own/\x1b[2J.py", ["A = 1\n", "A = 1\n\tB = '\x1b[1A\x1b]0;title\x07'\n"]
    for id, text in zip(("aa11", "bb22"), texts, strict=True):
        run = _record([], id).path
        (run / "code.json").write_text(json.dumps({"version": 1, "files": {name: id * 4}}))
        (run / "code").mkdir()
        (run / "code" / f"{id * 4}.py").write_text(text)
    assert main(["runs", "aa", "bb", "--diff", "--directory", "kept"]) == 0
    out = capsys.readouterr().out
    assert out.splitlines()[-6:] == [
        "code: 1 file differs",
        "--- aa11/own/\\x1b[2J.py",
        "+++ bb22/own/\\x1b[2J.py",
        "@@ -1 +1,2 @@",
        " A = 1",
        "+\tB = '\\x1b[1A\\x1b]0;title\\x07'",
    ]


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["a", "--diff"], "--diff needs two runs; write `luthier runs ID ID --diff`"),
        (["a", "b"], "2 runs are given; give one, or add --diff to compare them"),
        (["a", "b", "--diff", "--sync", "wandb"], "--sync and --diff cannot be combined"),
        (["--goodput"], "--goodput needs a run; write `luthier runs ID --goodput`"),
        (["a", "--goodput", "--sync", "wandb"], "--goodput and --sync cannot be combined"),
        (["a", "b", "--diff"], "no run 'a': there are no runs in runs"),
        (["--plot"], "--plot needs a run; write `luthier runs ID --plot`"),
        (["--log"], "--log needs a run; write `luthier runs ID --log`"),
        (["a", "--log", "--json"], "--log prints text, not JSON; leave out --json"),
        (["a", "--log", "--plot"], "--log and --plot cannot be combined; leave out one"),
        (["--best", "3"], "--best needs a metric; add --sort METRIC, as --sort held_out/loss"),
        (["a", "--last", "3"], "--last selects from the list of all runs, and runs are given"),
    ],
)
def test_a_wrong_question_about_several_runs(tmp_path, monkeypatch, capsys, words, text):
    monkeypatch.chdir(tmp_path)
    assert main(["runs", *words]) == 2
    assert f"luthier: {text}" in capsys.readouterr().err


def _plain_run(name, id, scores, root="kept", better="lower"):
    """Record a run of a few steps with an evaluation at each of them."""
    from luthier import records

    run = records.RunDirectory.create(
        root, name, id, configuration=records.Configuration(graph="{}")
    )
    sink = records.JsonLines(run.metrics_path)
    for step, score in enumerate(scores, 1):
        sink.emit(records.Step(step, {"loss": 4.0 / step}))
        sink.emit(records.Evaluation(step, "held_out", {"score": score}, {"score": better}))
    sink.close()
    evaluations = {"held_out": {"score": scores[-1]}} if scores else {}
    run.write_status(records.Status(status="finished", step=len(scores), evaluations=evaluations))
    return run


@pytest.fixture
def kept(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    _plain_run("lm", "aa11", [5.0, 4.0, 3.0])
    _plain_run("lm", "bb22", [5.0, 2.0])
    _plain_run("vision", "cc33", [1.0])


def test_the_best_runs_by_a_metric(kept, capsys):
    words = ["runs", "--directory", "kept"]
    assert main([*words, "--name", "lm", "--sort", "held_out/score", "--best", "1"]) == 0
    heads, row = capsys.readouterr().out.splitlines()
    assert heads.split()[:6] == ["id", "name", "status", "step", "held_out/score", "loss"]
    assert row.split()[:7] == ["bb22", "lm", "finished", "2", "2", "2", "█▁"]
    assert main([*words, "--last", "2", "--json"]) == 0
    assert [row["id"] for row in json.loads(capsys.readouterr().out)] == ["bb22", "cc33"]
    assert main([*words, "--status", "failed"]) == 0
    assert capsys.readouterr().out == "no matching runs in kept/\n"
    assert main([*words, "--sort", "held_out/scor"]) == 2
    err = capsys.readouterr().err
    assert err.startswith(
        "luthier: no run has a metric 'held_out/scor'; did you mean held_out/score?"
    )


@pytest.mark.parametrize(
    ("sharing", "peak", "predicted"),
    [
        (2, "700.0 MiB of the process, with Python and libraries", "80.0 MiB for arrays"),
        (None, "700.0 MiB of a device", "40.0 MiB for arrays"),
    ],
)
def test_a_run_shows_what_was_predicted_and_measured(
    tmp_path, monkeypatch, capsys, sharing, peak, predicted
):
    monkeypatch.chdir(tmp_path)
    run, mebi = _plain_run("lm", "aa11", [5.0]), 2**20
    plan = {"held_bytes": 20 * mebi, "gradient_bytes": 10 * mebi, "step_seconds": 0.02}
    plan = {"predicted": {**plan, "binding": "links", "reason": ""}}
    run.write_plan(plan)
    assert main(["runs", "last", "--directory", "kept"]) == 0
    lines = capsys.readouterr().out.splitlines()
    rows = dict(line.strip().split("  ", 1) for line in lines if "  " in line.strip())
    assert rows["predicted memory"].strip().startswith("30.0 MiB for arrays of a device, by shapes")
    measured = {"num_steps": 90, "step_seconds": 0.04, "memory_bytes": 700 * mebi}
    measured |= {"compiled_bytes_per_device": 40 * mebi, "num_sharing": sharing}
    run.write_plan({**plan, "measured": measured})
    assert main(["runs", "last", "--directory", "kept"]) == 0
    lines = [re.split("  +", line.strip()) for line in capsys.readouterr().out.splitlines()]
    at = lines.index(["step time", "40 ms (median of 90)"])
    assert lines[at + 1] == ["predicted", "at least 20 ms (links)"]
    assert lines[at + 2] == ["peak memory", peak]
    assert lines[at + 3] == ["predicted", f"{predicted}, by the compiler"]


def test_one_run_shows_its_curves(kept, capsys):
    assert main(["runs", "aa11", "--directory", "kept"]) == 0
    rows = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines())
    assert rows["loss"].split() == ["1.333", "█▃▁"]
    assert rows["held_out/score"].split() == ["3", "█▅▁"]


def test_curves_are_plotted_with_axes_and_a_legend(kept, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "40")
    words = ["runs", "aa11", "bb22", "--directory", "kept", "--plot"]
    assert main([*words, "held_out/score"]) == 0
    title, *rows, axis, steps, first, second = capsys.readouterr().out.splitlines()
    assert title == "held_out/score"
    assert [row.split()[0] for row in (rows[0], rows[-1])] == ["5", "2"]
    assert all(len(row) <= 40 for row in (*rows, axis, steps))
    assert "".join(rows).count("*") > 10
    assert steps.split() == ["1", "step", "3"]
    assert first == "  ** lm/aa11: 3 at step 3, lowest 3 at step 3"
    assert second == "  ++ lm/bb22: 2 at step 2, lowest 2 at step 2"
    assert main([*words, "held_out/score", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["metric"] == "held_out/score"
    assert [(run["id"], run["steps"], run["values"]) for run in found["runs"]] == [
        ("aa11", [1, 2, 3], [5.0, 4.0, 3.0]),
        ("bb22", [1, 2], [5.0, 2.0]),
    ]
    assert main([*words, "los"]) == 2
    errors = capsys.readouterr().err.splitlines()
    assert errors == ["luthier: lm/aa11 has no metric 'los'; did you mean loss?"]


def test_selected_runs_are_plotted_with_what_tells_them_apart(kept, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "60")
    made = {"aa11": ["seed=1", "model.dim=8"], "bb22": ["seed=2", "model.dim=8"]}
    monkeypatch.setattr(Run, "overrides", property(lambda run: made.get(run.id, ["model.dim=8"])))
    words = ["runs", "--directory", "kept", "--plot", "held_out/score"]
    assert main([*words, "--sort", "held_out/score", "--name", "lm"]) == 0
    assert capsys.readouterr().out.splitlines()[-4:] == [
        "  ** lm/bb22: 2 at step 2, lowest 2 at step 2",
        "     seed=2",
        "  ++ lm/aa11: 3 at step 3, lowest 3 at step 3",
        "     seed=1",
    ]
    # A run without the metric is listed; one that is named twice has one curve.
    _plain_run("vision", "dd44", [])
    _plain_run("vision", "ee55", [2.0, 7.0, 3.0], better="higher")
    words = ["runs", "dd44", "ee55", "vision/ee55", *words[1:]]
    assert main(words) == 0
    assert capsys.readouterr().out.splitlines()[-2:] == [
        "     vision/dd44: nothing recorded",
        "  ━━ vision/ee55: 3 at step 3, highest 7 at step 2",
    ]
    assert main([*words, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["runs"]
    assert [(run["id"], len(run["steps"])) for run in found] == [("dd44", 0), ("ee55", 3)]
    assert main(["runs", "--directory", "kept", "--name", "other", "--plot"]) == 2
    assert capsys.readouterr().err == "luthier: --plot: no matching runs in kept/\n"


def test_the_console_of_a_run_is_kept(trained, monkeypatch, capsys):
    monkeypatch.chdir(trained)
    assert main(["runs", "last", "--log"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "tiny" in lines
    assert any(line.startswith("step 4/4  loss ") for line in lines)
    assert "finished at step 4" in lines
