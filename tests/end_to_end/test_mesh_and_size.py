"""The study over device groups of different sizes, two of them of several processes."""

import collections
import os
import re
import subprocess
import sys

import pytest

from luthier import study as studies
from luthier.study.driver import read_journal

GROUPS = (1, 1, 2, 4)
OUTCOMES = {"complete", "infeasible"}
COMPILED = re.compile(r"XLA compilation of jit\((\w+)\) in")


def _words(line):
    """Return what a trial sets, by the last part of its path."""
    return {p.rpartition(".")[2]: v for p, v in (word.split("=", 1) for word in line["words"])}


def _fits(words, num_devices):
    """Return whether a mesh fits so many devices."""
    if "tensor" in words:
        return num_devices % int(words["tensor"]) == 0
    return num_devices == int(words["fsdp"]) if "fsdp" in words else True


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_trials_run_on_groups_that_they_fit_and_each_program_is_compiled_once(tmp_path, read_wandb):
    environment = {k: v for k, v in os.environ.items() if k not in ("WANDB_API_KEY", "XLA_FLAGS")}
    environment |= {"WANDB_MODE": "offline", "JAX_LOG_COMPILES": "1"}
    command = [sys.executable, "-m", "luthier", "sweep", "sweeps.mesh_and_size"]
    with open(tmp_path / "errors.txt", "wb") as errors:
        done = subprocess.run(command, cwd=tmp_path, env=environment, stderr=errors, check=False)
    assert done.returncode == 0, (tmp_path / "errors.txt").read_text()[-3000:]

    folder = tmp_path / "studies" / "mesh_and_size"
    lines = list(read_journal(folder / "journal.jsonl"))
    of = {
        kind: [line for line in lines if line["kind"] == kind]
        for kind in ("opened", "asked", "leased", "ended", "lost")
    }
    (opened,) = of["opened"]
    assert tuple(group["num_devices"] for group in opened["slices"]) == GROUPS
    words = {line["trials"][0]: _words(line) for line in of["asked"]}
    # The baseline sets nothing; in the space it is this.
    words[0] = _words({"words": ["data=-1", "dim=32", "hidden_dim=96", "num_layers=2"]})
    words[0]["remat"] = "NoRemat()"
    ended = {line["trial"]: line for line in of["ended"]}
    assert set(ended) == set(words) == set(range(12))
    assert {line["outcome"] for line in ended.values()} == OUTCOMES
    assert of["lost"] == []

    # What fits no group was never leased, and has a reason for each size of group.
    infeasible = {n for n, line in ended.items() if line["outcome"] == "infeasible"}
    leased = {line["trial"]: line["slice"] for line in of["leased"]}
    assert set(leased) == set(ended) - infeasible
    assert len(of["leased"]) == len(leased)
    for trial in infeasible:
        for size in set(GROUPS):
            reason = f"on {size} x cpu: the compiled step needs "
            assert reason in ended[trial]["reason"], ended[trial]["reason"]
    # All others ran where their mesh fits, and every group had some.
    assert all(_fits(words[trial], GROUPS[group]) for trial, group in leased.items())
    assert set(leased.values()) == set(range(len(GROUPS)))

    # One compile for each program of a group, in each of its processes.
    programs = {
        group: {
            tuple(sorted((k, v) for k, v in words[trial].items() if k != "peak"))
            for trial, at in leased.items()
            if at == group
        }
        for group in range(len(GROUPS))
    }
    assert sum(map(len, programs.values())) < len(leased)  # some programs served several trials
    logs = {0: ["workers/0.log"], 1: ["workers/1.log"]}
    for group, launch in ((2, 1), (3, 2)):
        logs[group] = [f"launch/{launch}/logs/mesh_and_size-0-rank-{rank}.log" for rank in (0, 1)]
    # Which of the two engines made its folder first is left to them.
    by_size = {}
    for group, paths in logs.items():
        counts = [
            collections.Counter(COMPILED.findall((folder / path).read_text())) for path in paths
        ]
        by_size[group] = [count["step"] for count in counts]
        assert all(count == counts[0] for count in counts)
        assert counts[0]["init"] == counts[0]["evaluate"] == counts[0]["step"]
    found = sorted(map(tuple, by_size.values()))
    assert found == sorted((len(programs[g]),) * len(logs[g]) for g in logs)

    for trial, group in leased.items():
        mode = studies.read_result(folder / "trials" / f"{trial:04d}").result["mode"]
        assert mode["slice"]["devices"] == GROUPS[group]
        assert {"optimizer.learning_rate.peak", "seed"} <= set(mode["hoisted"])

    # What W&B keeps of each trial, and of the study, in its own files.
    (directory,) = (folder / "wandb").glob("offline-run-*")
    study = read_wandb(directory)
    assert (study["run"]["run_group"], study["run"]["job_type"]) == ("mesh_and_size", "summary")
    for trial in leased:
        (directory,) = (folder / "trials" / f"{trial:04d}" / "run" / "wandb").glob("offline-run-*")
        contents = read_wandb(directory)
        run, config = contents["run"], contents["config"]
        assert run["run_group"] == "mesh_and_size"
        assert run["display_name"] == f"mesh_and_size/{trial}"
        assert (config["study"], config["trial"]) == ("mesh_and_size", trial)
        assert config["outcome"] == "complete"
        assert config["summary_run"] == study["run"]["run_id"]
        swept = {name: value for name, value in config.items() if name.startswith("swept/")}
        assert set(swept) == {
            "swept/mesh",
            "swept/width",
            "swept/remat",
            "swept/model.num_layers",
            "swept/optimizer.learning_rate.peak",
        }
        if trial:  # the baseline has the values of the experiment
            peak = float(words[trial]["peak"])
            assert swept["swept/optimizer.learning_rate.peak"] == pytest.approx(peak)
            assert swept["swept/width"] == words[trial]["dim"]
        value = contents["summary"]["eval/held_out/nats_per_byte"]
        value = value["last"] if isinstance(value, dict) else value
        assert value == pytest.approx(ended[trial]["values"][0])
