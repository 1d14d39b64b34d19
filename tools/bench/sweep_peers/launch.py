"""Runs the hand-written trials of `trial.py` under one launcher, and prints the best loss.

    python -m tools.bench.sweep_peers.launch WAY NUM_TRIALS NUM_TOGETHER FOLDER OVERRIDE ...

and the trials of a study with rungs under Ray Tune's ASHA:

    python -m tools.bench.sweep_peers.launch asha SECONDS SEED FOLDER

WAY is `loop`, `accuracy`, `saving` or `vmapped` (Optuna's ask and tell, the study in memory;
`accuracy` evaluates the accuracy beside the loss, as luthier does; `saving` has Orbax save the last
state of each trial), `hydra` (`hydra -m`, all jobs in this process) or `ray` (Ray Tune, one actor
that is reused). Rates are drawn at random.
"""

from __future__ import annotations

import json
import pathlib
import sys
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

EXPERIMENT = "configs.lm.quickstart"
LOWEST, HIGHEST = 1e-4, 1e-2


def with_optuna(
    num_trials: int,
    num_together: int,
    overrides: Sequence[str],
    checkpoints: pathlib.Path | None = None,
    with_accuracy: bool = False,
) -> float:
    """Ask Optuna for rates, one or several at a time; return the best loss.

    Args:
      num_trials: How many trials there are.
      num_together: How many share a program.
      overrides: Changes to the experiment.
      checkpoints: The folder in which the last state of each trial is saved, where `num_together`
        is 1; None saves nothing.
      with_accuracy: Whether evaluations compute the accuracy too.
    """
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(0))
    trainer = _trainer(overrides, with_accuracy)
    for first in range(0, num_trials, num_together):
        trials = [study.ask() for _ in range(min(num_together, num_trials - first))]
        rates = [trial.suggest_float("rate", LOWEST, HIGHEST, log=True) for trial in trials]
        if num_together == 1:
            path = None if checkpoints is None else checkpoints / str(trials[0].number)
            losses = [trainer.run(rates[0], path)]
        else:
            # The last trials are filled up to K: another number would be another program.
            filled = [*rates, *rates[:1] * (num_together - len(rates))]
            losses = trainer.run_together(filled)[: len(rates)]
        for trial, loss in zip(trials, losses, strict=True):
            study.tell(trial, loss)
    return study.best_value


def with_hydra(num_trials: int, folder: str, overrides: Sequence[str]) -> float:
    """Sweep by `hydra -m` with its basic launcher, which runs all jobs in this process."""
    import hydra

    losses: list[float] = []
    trainer = _trainer(overrides)  # kept between the jobs, with what it has compiled

    @hydra.main(version_base=None, config_path=None)
    def job(config: object) -> float:
        losses.append(trainer.run(float(config.rate)))
        return losses[-1]

    rates = ",".join(f"{rate:.6g}" for rate in _rates(num_trials))
    sys.argv[1:] = ["-m", f"+rate={rates}", f"hydra.sweep.dir={folder}/hydra"]
    job()
    return min(losses)


def with_ray(num_trials: int, folder: str, overrides: Sequence[str]) -> float:
    """Sweep by Ray Tune with one actor, reused so that it compiles once."""
    import ray
    from ray import tune

    class Trial(tune.Trainable):
        def setup(self, config: dict) -> None:
            self.trainer = _trainer(overrides)

        def reset_config(self, new_config: dict) -> bool:
            return True

        def step(self) -> dict:
            return {"loss": self.trainer.run(self.config["rate"]), "done": True}

    ray.init(num_cpus=1, log_to_driver=False, include_dashboard=False)
    found = tune.Tuner(
        Trial,
        param_space={"rate": tune.grid_search(_rates(num_trials))},
        run_config=tune.RunConfig(
            storage_path=f"{folder}/ray",
            checkpoint_config=tune.CheckpointConfig(checkpoint_at_end=False),
            failure_config=tune.FailureConfig(fail_fast=True),
            verbose=0,
        ),
        tune_config=tune.TuneConfig(reuse_actors=True, metric="loss", mode="min"),
    ).fit()
    if found.errors:
        raise found.errors[0]
    return found.get_best_result().metrics["loss"]


def with_asha(seconds: float, seed: int, folder: str) -> None:
    """Search the space of `sweeps.rungs` by Ray Tune's ASHA, which ends trials at the same rungs.

    One actor trains all trials. Prints a JSON line for each trial that is trained to its end, with
    its loss and the seconds that all trials have trained until then, and one with the totals.

    Args:
      seconds: Time of training and evaluation, after which no trial goes on.
      seed: Of the settings.
      folder: Where Ray keeps its results.
    """
    import ray
    from ray import tune
    from ray.tune.schedulers import AsyncHyperBandScheduler

    from luthier import graph as graphs
    from tools.bench.sweep_peers.trial import Trainer

    every, num_rungs, reduction = 40, 3, 3

    class Trial(tune.Trainable):
        def setup(self, config: dict) -> None:
            base = graphs.resolve("sweeps.rungs:random_search").base
            self.trainer = Trainer(graphs.build(base))
            for _ in self._losses(1e-3, 0.1):  # compiles, which the budget does not count
                pass
            self.reset_config(config)

        def reset_config(self, new_config: dict) -> bool:
            self.curve = self._losses(new_config["peak"], new_config["decay"])
            return True

        def step(self) -> dict:
            start = time.perf_counter()
            loss = next(self.curve)
            return {"loss": loss, "took": time.perf_counter() - start}

        def _losses(self, peak: float, decay: float) -> Any:
            return self.trainer.losses(peak, decay, every, num_batches=4)

    class Time(tune.Callback):
        """Sums the time of all trials, and prints those that reach their full length."""

        taken, trials = 0.0, set[str]()

        def on_trial_result(self, iteration: int, trials: Any, trial: Any, result: Any, **_: Any):
            self.taken += result["took"]
            self.trials.add(trial.trial_id)
            if result["training_iteration"] == reduction ** (num_rungs - 1):
                print(json.dumps({"seconds": self.taken, "loss": result["loss"]}), flush=True)

    class Budget(tune.Stopper):
        def __call__(self, trial_id: str, result: Any) -> bool:
            return self.stop_all()

        def stop_all(self) -> bool:
            return time_of_all.taken >= seconds

    ray.init(num_cpus=1, log_to_driver=False, include_dashboard=False)
    time_of_all = Time()
    found = tune.Tuner(
        Trial,
        param_space={"peak": tune.loguniform(1e-4, 1e-1), "decay": tune.loguniform(1e-3, 1.0)},
        run_config=tune.RunConfig(
            storage_path=f"{folder}/ray",
            checkpoint_config=tune.CheckpointConfig(checkpoint_at_end=False),
            failure_config=tune.FailureConfig(fail_fast=True),
            callbacks=[time_of_all],
            stop=Budget(),
            verbose=0,
        ),
        tune_config=tune.TuneConfig(
            reuse_actors=True,
            metric="loss",
            mode="min",
            num_samples=1000,
            # A second one that waits: without it, Ray ends the actor with each trial.
            max_concurrent_trials=2,
            search_alg=tune.search.BasicVariantGenerator(random_state=seed),
            scheduler=AsyncHyperBandScheduler(
                max_t=reduction ** (num_rungs - 1),
                grace_period=1,
                reduction_factor=reduction,
            ),
        ),
    ).fit()
    if found.errors:
        raise found.errors[0]
    print(json.dumps({"trials": len(time_of_all.trials), "seconds": time_of_all.taken}))


def _trainer(overrides: Sequence[str], with_accuracy: bool = False) -> Any:
    """Return what trains the trials of the quickstart with some overrides."""
    # Not at the top: Ray's own process neither trains nor needs JAX.
    from luthier import graph as graphs
    from tools.bench.sweep_peers.trial import Trainer

    experiment = graphs.build(graphs.apply(graphs.resolve(EXPERIMENT), [*overrides]))
    return Trainer(experiment, with_accuracy)


def _rates(num_trials: int) -> list[float]:
    drawn = np.random.default_rng(0).uniform(np.log(LOWEST), np.log(HIGHEST), num_trials)
    return np.exp(drawn).tolist()


def main() -> None:
    """Run the way that the command line names."""
    if sys.argv[1] == "asha":
        _, seconds, seed, folder = sys.argv[1:]
        with_asha(float(seconds), int(seed), folder)
        return
    way, num_trials, num_together, folder, *overrides = sys.argv[1:]
    pathlib.Path(folder).mkdir(parents=True, exist_ok=True)
    if way == "hydra":
        best = with_hydra(int(num_trials), folder, overrides)
    elif way == "ray":
        best = with_ray(int(num_trials), folder, overrides)
    else:
        checkpoints = pathlib.Path(folder) if way == "saving" else None
        with_accuracy = way == "accuracy"
        best = with_optuna(
            int(num_trials), int(num_together), overrides, checkpoints, with_accuracy
        )
    print(f"best {best:.5f}")


if __name__ == "__main__":
    main()
