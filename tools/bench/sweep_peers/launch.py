"""Runs the hand-written trials of `trial.py` under one launcher, and prints the best loss.

    python -m tools.bench.sweep_peers.launch WAY NUM_TRIALS NUM_TOGETHER FOLDER OVERRIDE ...

WAY is `loop` or `vmapped` (Optuna's ask and tell, the study in memory), `hydra` (`hydra -m`, all
jobs in this process) or `ray` (Ray Tune, one actor that is reused). Rates are drawn at random.
"""

from __future__ import annotations

import pathlib
import sys
from collections.abc import Sequence

import numpy as np

LOWEST, HIGHEST = 1e-4, 1e-2


def with_optuna(num_trials: int, num_together: int, overrides: Sequence[str]) -> float:
    """Ask Optuna for rates, one or several at a time; return the best loss."""
    import optuna

    from tools.bench.sweep_peers.trial import Trainer

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(0))
    trainer = Trainer(overrides)
    for first in range(0, num_trials, num_together):
        trials = [study.ask() for _ in range(min(num_together, num_trials - first))]
        rates = [trial.suggest_float("rate", LOWEST, HIGHEST, log=True) for trial in trials]
        if num_together == 1:
            losses = [trainer.run(rates[0])]
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

    from tools.bench.sweep_peers.trial import Trainer

    losses: list[float] = []
    trainer = Trainer(overrides)  # kept between the jobs, with what it has compiled

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

    from tools.bench.sweep_peers.trial import Trainer

    class Trial(tune.Trainable):
        def setup(self, config: dict) -> None:
            self.trainer = Trainer(overrides)

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
            verbose=0,
        ),
        tune_config=tune.TuneConfig(reuse_actors=True, metric="loss", mode="min"),
    ).fit()
    if found.errors:
        raise found.errors[0]
    return found.get_best_result().metrics["loss"]


def _rates(num_trials: int) -> list[float]:
    drawn = np.random.default_rng(0).uniform(np.log(LOWEST), np.log(HIGHEST), num_trials)
    return np.exp(drawn).tolist()


def main() -> None:
    """Run the way that the command line names."""
    way, num_trials, num_together, folder, *overrides = sys.argv[1:]
    pathlib.Path(folder).mkdir(parents=True, exist_ok=True)
    if way == "hydra":
        best = with_hydra(int(num_trials), folder, overrides)
    elif way == "ray":
        best = with_ray(int(num_trials), folder, overrides)
    else:
        best = with_optuna(int(num_trials), int(num_together), overrides)
    print(f"best {best:.5f}")


if __name__ == "__main__":
    main()
