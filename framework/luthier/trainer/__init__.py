"""Training: one call runs an experiment from its first step, or from where it was left.

`luthier.train` is `run`, and `luthier.evaluate` is `evaluate_run`.
"""

from __future__ import annotations

from luthier.trainer.cadence import is_due, is_over
from luthier.trainer.checks import DocumentLimit, check_data, check_repeatable
from luthier.trainer.divergence import Rise
from luthier.trainer.evaluate import Evaluator, Patience, trace_evaluations
from luthier.trainer.feed import Batch, Feed, KeptBatches
from luthier.trainer.interrupt import (
    INTERRUPTED,
    PAUSED,
    PREEMPTED,
    PRUNED,
    Preempted,
    StopSignals,
    Watcher,
)
from luthier.trainer.loop import CompiledStep, Loop, Position, Rates, TrainStep
from luthier.trainer.media import Shows, check_shows, count_bins, tile
from luthier.trainer.moving import MovedRun, move_run
from luthier.trainer.opening import (
    OPERATIVE_GIN,
    Opened,
    Request,
    check_place,
    configuration,
    open_run,
    run_id,
)
from luthier.trainer.processes import (
    Agreed,
    Agreeing,
    HostTimes,
    Probe,
    Times,
    check_devices,
    check_same,
    stragglers,
)
from luthier.trainer.profile import ProfiledSteps, Profiler
from luthier.trainer.results import FINISHED, Result, next_steps
from luthier.trainer.resume import ResumeDifferences, check_continuation, compare, misfits
from luthier.trainer.run import Session, open_session, run
from luthier.trainer.trained import (
    Trained,
    can_generate,
    evaluate_run,
    export_run,
    final_sample,
    load_run,
    load_weights,
    module_of,
    sample_run,
    sample_text,
    sample_tokens,
    transduces,
)
from luthier.trainer.watchdog import Watch

__all__ = [
    "FINISHED",
    "INTERRUPTED",
    "OPERATIVE_GIN",
    "PAUSED",
    "PREEMPTED",
    "PRUNED",
    "Agreed",
    "Agreeing",
    "Batch",
    "CompiledStep",
    "DocumentLimit",
    "Evaluator",
    "Feed",
    "HostTimes",
    "KeptBatches",
    "Loop",
    "MovedRun",
    "Opened",
    "Patience",
    "Position",
    "Preempted",
    "Probe",
    "ProfiledSteps",
    "Profiler",
    "Rates",
    "Request",
    "Result",
    "ResumeDifferences",
    "Rise",
    "Session",
    "Shows",
    "StopSignals",
    "Times",
    "TrainStep",
    "Trained",
    "Watch",
    "Watcher",
    "can_generate",
    "check_continuation",
    "check_data",
    "check_devices",
    "check_place",
    "check_repeatable",
    "check_same",
    "check_shows",
    "compare",
    "configuration",
    "count_bins",
    "evaluate_run",
    "export_run",
    "final_sample",
    "is_due",
    "is_over",
    "load_run",
    "load_weights",
    "misfits",
    "module_of",
    "move_run",
    "next_steps",
    "open_run",
    "open_session",
    "run",
    "run_id",
    "sample_run",
    "sample_text",
    "sample_tokens",
    "stragglers",
    "tile",
    "trace_evaluations",
    "transduces",
]
