"""The page of sweeps; its table of spaces is read by the very parser of the command line."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from luthier.study import objective_grammar, samplers
from luthier.study.driver import trial_table
from luthier.study.space_grammar import parse_dimension

_TEXT = """\
# Sweeps

A study edits paths of an experiment's config and runs trials on the devices of this machine.

    luthier sweep configs.lm.quickstart --space 'optimizer.learning_rate.peak=log(1e-4,1e-2)'
    luthier sweep sweeps.lm_learning_rate base.training.steps=100 budget.trials=8
    luthier sweep sweeps.lm_learning_rate --devices cpu:8 --slices 4
    luthier sweep configs.lm.quickstart --space 'optimizer.b2=uniform(0.9,0.999)' \\
        --sampler 'tpe(n_startup_trials=5)' --seeds 2 --budget no_improvement=12 \\
        --constraint 'peak_bytes<=8GiB' --packing auto
    luthier sweep --resume lm_learning_rate budget.trials=40
    luthier sweep --resume lm_learning_rate --retry failed
    luthier sweep show lm_learning_rate/7
    luthier sweep show lm_learning_rate [--all] [--html FILE] [--sync wandb]
    luthier sweep best lm_learning_rate --as overrides
    luthier sweep rerun lm_learning_rate/7
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

`--sampler NAME` takes arguments of the sampler, too: `--sampler 'tpe(n_startup_trials=6)'`. As an
override of a study it is `sampler=tpe(n_startup_trials=6)`, or any sampler of Optuna as a node:
`sampler=optuna.samplers.GPSampler()`.

`--pruner NAME` ends trials early: `--pruner 'median(n_startup_trials=3)'`. There are
{pruners}.
A pruner that could not act within the budget is an error before the first trial.

## Rungs

`--scheduler asha` or `--scheduler successive-halving`, with arguments as `'asha(num_rungs=3)'`,
pauses trials at fractions of their length, and promotes the best from their checkpoints.
[Stop or pause bad trials early](schedule_trials.md) compares schedulers and pruners.

## Objectives

`--objective WORD`:

| word | objective |
| --- | --- |
| `held_out/loss` | the last value of a metric of an evaluation |
| `held_out/loss:best` | its best value |
| `held_out/loss:mean3` | the mean of its last three values |
| `train/loss:mean100` | the mean of the last 100 training steps |
| {objectives} | a fact of the trial |
| `steps_to(held_out/loss<=2.0)` | steps until a metric reaches a value; `tokens_to`, `seconds_to` |
| `held_out/loss + 0.1 * step_time` | an expression, which is minimized |
| `maximize(held_out/accuracy - 1e-9 * parameters)` | the same, maximized |

Expressions have numbers, `+ - * / **`, parentheses and `min`, `max`, `abs`, `sqrt`, `exp`, `log`. A
trial that never reaches the value of `steps_to` has the objective `inf`; seconds are those of
training, without compilation and evaluations. A pruner needs `EVALUATION/METRIC`. Several
objectives give a Pareto front.

`--constraint 'peak_bytes<=8GiB'` bounds any of these (`<=` or `>=`; K, M, B, KiB, MiB, GiB). It is
checked when a trial ends: one that violates it is complete, but is not the best, and TPE, NSGA-II
and GP learn from by how much. `space.constraints` also has conditions on the config
(`model.dim % 64 == 0`), which are checked before a trial runs.

## The life of a trial

suggested -> its config is built -> equal to an earlier trial? -> feasible on a device group? -> it
waits for a device group or a place in a pack -> it reports each evaluation -> it ends as one of:
{states}.

Trials that differ only in scalars (learning rates, decays, seeds, loss weights) share one compiled
program: the scalars are runtime arguments. `--packing auto`
measures whether several trials in one program (packed trials, `lanes`) are faster, and starts the
next trial in the place of a finished one.

## Budgets

The first limit that is reached ends a study: `budget.trials` (by default every point of a grid, and
32 trials for other samplers), `budget.wall_seconds`, `budget.device_hours`,
`budget.no_improvement` (trials in a row without a better one) and `budget.target` (a value of the
objective); `--budget NAME=VALUE` sets one. `wall_seconds` is the time that the study is driven,
over all resumes; the time between them does not count. Infeasible trials, and
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
    "any:dropout=uniform(0,0.3,step=0.1)": "0, 0.1, 0.2 or 0.3",
    "optimizer.b1=normal(0.9,0.02)": "a number, normal: mean and standard deviation",
    "optimizer.eps=lognormal(-18,2)": "a number whose logarithm is normal",
    "model.num_layers=int(2,8,step=2)": "2, 4, 6 or 8",
    "training.global_batch_size=int(8,256,log=true)": "a whole number, evenly spread in its "
    "logarithm",
    "model.dim=pow2(64,512)": "64, 128, 256 or 512",
    "data.length=ordinal(128,256,384)": "one of a list that has an order",
    "optimizer.weight_decay=choice(None,0.1)": "one of a list that has none",
    "parallelism=choice(@fsdp,@tensor(2))": "one of some fiddlers",
    "model.dim,model.num_layers=rows((64,8),(128,4))": "one row of a table: values that are set "
    "together",
}


def render() -> str:
    """Return the page."""
    return _TEXT.format(
        spaces=_table(("space", "values", "in Python"), map(_space, _SPACES)),
        samplers=_table(
            ("name", "sampler"), ((f"`{n}`", f"`{_name(x)}`") for n, x in samplers.SAMPLERS.items())
        ),
        pruners=", ".join(f"`{name}`" for name in samplers.PRUNERS),
        objectives=", ".join(f"`{name}`" for name in objective_grammar.FACTS),
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
