"""The page of sweeps; its table of spaces is read by the very parser of the command line."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from luthier.study import samplers
from luthier.study.driver import trial_table
from luthier.study.space_grammar import parse_dimension

_TEXT = """\
# Sweeps

A study edits paths of an experiment's config and runs trials on the devices of this machine.

    luthier sweep configs.lm.quickstart --space 'optimizer.learning_rate.peak=log(1e-4,1e-2)'
    luthier sweep sweeps.lm_learning_rate base.training.steps=100 budget.trials=8
    luthier sweep sweeps.lm_learning_rate --devices cpu:8 --slices 4
    luthier sweep --resume studies/lm_learning_rate
    luthier sweep --resume studies/lm_learning_rate --retry failed
    luthier sweep show lm_learning_rate/7
    luthier sweep show lm_learning_rate [--all] [--html FILE] [--sync wandb]
    luthier sweep best lm_learning_rate --as overrides
    luthier train study:lm_learning_rate/7

A study is a config itself: see `sweeps/lm_learning_rate.py`. The first name in the path of an
override selects its part (`base`, `space`, `objectives`, `sampler`, `pruner`, `scheduler`,
`budget`, `engine`, ...). Trial 0 is the unchanged experiment.

## Spaces

`--space PATH=...`, where PATH can be any pattern of `luthier help overrides`:

{spaces}

`--when 'PATH=OPTION: PATH=...'` samples a dimension only if that option of a `choice` is selected.
`--sweep lr,seeds` takes the functions `sweep_lr` and `sweep_seeds` of the experiment's module,
which yield tables of overrides, and tries their product.

## Samplers

{samplers}

`--sampler NAME`, `--pruner NAME`; in a study any sampler of Optuna is a node
(`sampler=optuna.samplers.TPESampler(n_startup_trials=6)`).

## Rungs

`scheduler=luthier.study.Asha()` pauses trials at fractions of their length, and promotes the best
from their checkpoints. [Stop or pause bad trials early](schedule_trials.md) compares schedulers and
pruners.

## Objectives

`--objective EVALUATION/METRIC` is the last value of the metric, with `:best` the best value, with
`:mean3` the mean of the last three. Without an evaluation: {objectives}.
Several objectives give a Pareto front.

## The life of a trial

suggested -> its config is built -> equal to an earlier trial? -> feasible on a device group? -> it
waits for a device group or a place in a pack -> it reports each evaluation -> it ends as one of:
{states}.

Trials that differ only in scalars (learning rates, decays, seeds, loss weights) share one compiled
program: the scalars are runtime arguments. `packing=luthier.study.SharedPrograms(lanes="auto")`
measures whether several trials in one program (packed trials, `lanes`) are faster, and starts the
next trial in the place of a finished one.

## Budgets

The first limit that is reached ends a study: `budget.trials` (by default every point of a grid, and
32 trials for other samplers), `budget.wall_seconds`, `budget.device_hours`. Infeasible trials, and
copies that get the result of an equal earlier trial, have numbers of their own and count as trials;
the last line of a study says how many there were. A budget that cuts a grid off is reported before
the first trial and at the end. Device time is devices times the time from lease to end, with
compilation, evaluations and lost work; packed trials share it. `budget.trial_seconds` ends a single
trial as failed; clocks that are set or a suspended machine do not count.

## Faults and retries

- A fault of the machine (a full disk, EIO, a lost mount, ECC, NCCL): the trial is requeued without
  counting a retry. A device group with two faults in a row is excluded; without one left the study
  stops.
- The worker dies: the trial is requeued up to `budget.retries` times, then it fails.
- An error in code or data: the trial has failed, with `traceback.txt` in its folder. The study
  stops after `budget.failures` of them in a row, or where the baseline fails.
- Divergence, or more than `budget.trial_seconds`: the trial has failed; the study continues.
- A trial that cannot run, or be recorded, is infeasible before it takes a device group. The study
  stops where that is the baseline.

`luthier sweep show NAME/7` prints the traceback of trial 7. `luthier sweep --resume DIR` reruns
trials that met a fault of the machine under their numbers; suggestions are those of an undisturbed
study. `--retry failed`, or `--retry failed:REGEX` for reasons that match, also runs failed trials
again; from then on all trials run the source as it is at that moment. If a study stopped before any
trial was complete, the same command starts afresh: the old folder is renamed to `NAME.1`.

| exit code | |
| --- | --- |
| 0 | the study is finished, and at least one trial is complete |
| 1 | no trial is complete; or failures in a row, or of the baseline, stopped it |
| 2 | bad input; or faults of the machine stopped it: `--resume` continues |
| 75 | preempted (SIGTERM, SIGHUP): running trials are saved, `--resume` continues |
| 130 | interrupted: `--resume` continues |

## Nothing is lost

`studies/NAME` holds the journal (`journal.jsonl`), the study (`study.json`), the source that its
trials run (`source`), a directory for each trial with its whole graph, its result and its run, the
report (`report.html`), and Optuna's copy (`optuna.journal`, for optuna-dashboard). Ctrl-C saves the
running trials; `--resume` continues, also after any process was killed. In W&B, trials are runs of
one group, and one more run summarizes them.

The report is one HTML file that needs neither a server nor a network. It shows the learning curves
of all trials, the history and the distribution of an objective, the Pareto front, importance,
slices and contours of the dimensions, parallel coordinates, the use of each device group, and a
table of trials that sorts by any column and filters by state and text. While the study runs, the
driver writes it again every ten seconds or more rarely, and an opened page reloads itself at the
same place. Of thousands of trials it draws the best and others at even distances, and shows how
many it drew.

Optuna's copy has every trial with its intermediate values, also while it runs, and with sizes and
choices as the config has them; `optuna.load_study` and `trials_dataframe` read it, too. Where it is
missing, `--resume` writes it again. `storage=sqlite:///all.db` keeps the copies of several studies
in one database, `storage=None` keeps none.
"""

_SPACES = {
    "optimizer.learning_rate.peak=log(1e-4,1e-2)": "a number, evenly spread in its logarithm",
    "any:weight_decay=uniform(0,0.5)": "a number, evenly spread",
    "model.num_layers=int(2,8,step=2)": "2, 4, 6 or 8",
    "model.dim=pow2(64,512)": "64, 128, 256 or 512",
    "data.length=ordinal(128,256,384)": "one of a list that has an order",
    "optimizer.weight_decay=choice(None,0.1)": "one of a list that has none",
    "parallelism=choice(@fsdp,@tensor(2))": "one of some fiddlers",
}


def render() -> str:
    """Return the page."""
    return _TEXT.format(
        spaces=_table(("space", "values", "in Python"), map(_space, _SPACES)),
        samplers=_table(
            ("name", "sampler"), ((f"`{n}`", f"`{_name(x)}`") for n, x in samplers.SAMPLERS.items())
        ),
        objectives=", ".join(f"`{name}`" for name in samplers.FACTS),
        states=", ".join(f"`{state}`" for state in trial_table.ENDED),
    )


def _space(word: str) -> tuple[str, str, str]:
    _, dimension = parse_dimension(word)
    return f"`{word}`", _SPACES[word], f"`{_name(type(dimension))}`"


def _name(target: Any) -> str:
    if target.__module__.startswith("optuna"):
        return f"optuna.samplers.{target.__name__}"
    return f"luthier.study.{target.__name__}"


def _table(heads: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [f"| {' | '.join(heads)} |", f"|{' --- |' * len(heads)}"]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)])
