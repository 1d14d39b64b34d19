"""The page of sweeps; its table of spaces is read by the very parser of the command line."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from luthier.study import samplers
from luthier.study.driver import trial_table
from luthier.study.space_grammar import parse_dimension

_TEXT = """\
# Sweeps

A study edits paths of an experiment's graph and drives trials over the devices of this machine.

    luthier sweep configs.lm.quickstart --space 'optimizer.learning_rate.peak=log(1e-4,1e-2)'
    luthier sweep sweeps.lm_learning_rate base.training.steps=100 budget.trials=8
    luthier sweep sweeps.lm_learning_rate --devices cpu:8 --slices 4
    luthier sweep --resume studies/lm_learning_rate
    luthier sweep --resume studies/lm_learning_rate --retry failed
    luthier sweep show lm_learning_rate/7
    luthier sweep show lm_learning_rate [--all] [--html FILE] [--sync wandb]
    luthier sweep best lm_learning_rate --as overrides
    luthier train study:lm_learning_rate/7

A study is a graph itself: `sweeps/lm_learning_rate.py` has one, and the first word of an override
says which part it is of (`base`, `space`, `objectives`, `sampler`, `pruner`, `budget`, `engine`,
...). Trial 0 is the experiment as it is.

## Spaces

`--space PATH=...`, where PATH may be any pattern of `luthier help overrides`:

{spaces}

`--when 'PATH=OPTION: PATH=...'` chooses only where that option of a `choice` is chosen. `--sweep
lr,seeds` takes the functions `sweep_lr` and `sweep_seeds` of the experiment's module, which yield
tables of overrides, and tries their product.

## Samplers

{samplers}

`--sampler NAME`; in a study any sampler of Optuna is a node
(`sampler=optuna.samplers.TPESampler(n_startup_trials=6)`).

## Objectives

`--objective EVALUATION/METRIC` takes the last value; `:best` and `:mean3` behind it the best and
the mean of the last three. Without an evaluation: {objectives}.
Several make a Pareto front.

## What becomes of a trial

asked -> its graph is made -> the same as an earlier one? -> can it run on a slice? -> it waits for
a slice or a lane -> it reports each evaluation -> it ends as one of:
{states}.

Trials that differ only in numbers that can be hoisted (learning rates, decays, seeds, loss weights)
share one compiled program on a warm worker. `packing=luthier.study.SharedPrograms(lanes="auto")`
measures whether several of them in one program are faster, and refills a lane whose trial ended.

## Budgets

What is reached first ends a study: `budget.trials` (every point of a grid, 32 trials of any other
sampler, where it is not set), `budget.wall_seconds`, `budget.device_hours`. Infeasible trials, and
copies that get the result of an equal earlier trial, have numbers of their own and count as trials;
the last line of a study says how many there were. A budget that cuts a grid off is reported before
the first trial and at the end. Device time is devices times the time from lease to end, with
compilation, evaluations and lost work; packed trials share it. `budget.trial_seconds` ends a
single trial as failed; clocks that are set or a suspended machine do not count.

## Faults and retries

- A fault of the machine (a full disk, EIO, a lost mount, ECC, NCCL): the trial is queued again,
  uncounted. A device group with two in a row is excluded; without one left the study stops.
- The worker dies: the trial is queued again, `budget.retries` times; then it has failed.
- An error in code or data: the trial has failed, with `traceback.txt` in its folder. The study
  stops after `budget.failures` of them in a row, or where the baseline fails.
- Divergence, or more than `budget.trial_seconds`: the trial has failed; the study continues.
- A trial that cannot run, or be recorded, is infeasible before it takes a device group. The study
  stops where that is the baseline.

`luthier sweep show NAME/7` prints the traceback of trial 7. `luthier sweep --resume DIR` runs what
met a fault of the machine under its old number, and suggests what the undisturbed study would have.
`--retry failed`, or `--retry failed:REGEX` for reasons that match, also runs failed trials again;
from then on all trials run the source as it is at that moment. A study that stopped before any
trial was complete makes room for the same command: its folder is renamed to `NAME.1`.

| exit code | |
| --- | --- |
| 0 | the study is over, and a trial is complete |
| 1 | no trial is complete; or failures in a row, or of the baseline, stopped it |
| 2 | bad input; or faults of the machine stopped it: `--resume` goes on |
| 130 | interrupted: `--resume` goes on |

## Nothing is lost

`studies/NAME` holds the journal (`journal.jsonl`), the study (`study.json`), the source that its
trials run (`source`), a directory for each trial with its whole graph, its result and its run,
the report (`report.html`), and Optuna's copy (`optuna.journal`, for optuna-dashboard). Ctrl-C
saves what runs; `--resume` goes on, also after a kill of any process. In W&B, trials are runs of
one group, and one more run sums them up.
"""

_SPACES = {
    "optimizer.learning_rate.peak=log(1e-4,1e-2)": "a number, evenly spread in its logarithm",
    "any:dropout=uniform(0,0.5)": "a number, evenly spread",
    "model.num_layers=int(2,8,step=2)": "2, 4, 6 or 8",
    "model.dim=pow2(64,512)": "64, 128, 256 or 512",
    "data.length=ordinal(128,256,384)": "one of a list that has an order",
    "optimizer.weight_decay=choice(None,0.1)": "one of a list that has none",
    "parallelism=choice(@fsdp,@tensor(2))": "one of some fiddlers",
}


def render() -> str:
    """Return the page."""
    return _TEXT.format(
        spaces=_table(("space", "what is chosen", "in Python"), map(_space, _SPACES)),
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
