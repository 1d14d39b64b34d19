"""The result of a call of training."""

from __future__ import annotations

import dataclasses
import difflib
import functools
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from luthier.checkpoint import Provenance
from luthier.errors import (
    EXIT_DONE,
    EXIT_FAILED,
    EXIT_INTERRUPTED,
    EXIT_REQUEUE,
    Problem,
    RunError,
)
from luthier.records import RunDirectory
from luthier.trainer.interrupt import INTERRUPTED, PAUSED, PREEMPTED, PRUNED

FINISHED = "finished"
# Options that the command for more steps replaces.
_LENGTH = re.compile(
    r" (--run[ =]\S+|--extend|--new|'training\.steps=[^']*'|training\.steps=\S+)(?!\S)"
)


@dataclasses.dataclass(frozen=True)
class Result:
    """The state of a run after a call.

    Args:
      directory: The run's directory.
      status: `finished`, `interrupted` or `preempted`; or a watcher's reason, such as `pruned`.
      step: Optimizer steps done.
      metrics: Last metrics of every evaluation set, by their names:
        `result.metrics["held_out"]["loss"]`.
      sample: Text that the model generated at the end, or empty.
      message: Next commands, for people.
      was_over: Whether the run was finished before the call, which then did nothing.
      restored: Where each parameter came from, where this call started a run by `restore`.
      is_saved: Whether there is a checkpoint of this step; not where the run keeps none.
      load_model: Returns the trained model; see `model`.
    """

    directory: Path
    status: str
    step: int
    metrics: Mapping[str, Mapping[str, float]] = dataclasses.field(default_factory=dict)
    sample: str = ""
    message: str = ""
    was_over: bool = False
    restored: Sequence[Provenance] = ()
    is_saved: bool = True
    load_model: Callable[[], Any] | None = dataclasses.field(
        default=None, repr=False, compare=False
    )

    # Read from the checkpoint when it is asked for, and not kept from training: a result that is
    # never asked for its model holds no memory of the devices, and one of a run that was finished
    # before has it, too.
    @functools.cached_property
    def model(self) -> Any:
        """The trained NNX model with its arrays in place, ready to be called.

        It is read from the last checkpoint when it is first used.

        Raises:
          BadInput: The run keeps no checkpoints, or there is none of it yet.
        """
        if self.load_model is None:
            raise RunError(Problem(f"the model of {self.directory} cannot be loaded from here"))
        return self.load_model()

    def __getattr__(self, name: str) -> Any:
        # Python calls this for what the object does not have, and for a property that raises an
        # `AttributeError` of its own, which is raised again.
        if name.startswith("__") or hasattr(type(self), name):
            return object.__getattribute__(self, name)
        what = f"{type(self).__name__!r} object has no attribute {name!r}"
        metrics = vars(self).get("metrics", {})
        places = [f"result.metrics[{at!r}][{name!r}]" for at, own in metrics.items() if name in own]
        if name in metrics:
            places = [f"result.metrics[{name!r}]"]
        near = places or difflib.get_close_matches(name, dir(self))
        hint = f"; did you mean {' or '.join(near[:3])}?" if near else ""
        raise AttributeError(what + hint, name=name, obj=self)

    @property
    def exit_code(self) -> int:
        """The exit code of the process."""
        if self.status == PREEMPTED and not self.is_saved:
            return EXIT_FAILED  # a queue that starts it again would do so for ever
        ends = {INTERRUPTED: EXIT_INTERRUPTED, PREEMPTED: EXIT_REQUEUE}
        return {FINISHED: EXIT_DONE, PRUNED: EXIT_DONE, PAUSED: EXIT_DONE, **ends}[self.status]


def next_steps(
    directory: RunDirectory,
    status: str,
    command: str,
    steps: int,
    prompt: str | None = None,
    is_saved: bool = True,
) -> str:
    """Return the next commands for a run: resume, extend or sample it.

    Args:
      directory: The run's directory.
      status: Its final status.
      command: The command that started it; empty in a notebook.
      steps: Optimizer steps of the whole run.
      prompt: Text that a sample continues, may be empty; None where the model writes no text.
      is_saved: Whether there is a checkpoint of its last step.

    Returns:
      The commands, a line each, or a sentence where there are none.
    """
    # Never "to resume" without a checkpoint: the same command would start again at step 1, and a
    # queue would repeat that for ever.
    if not is_saved:
        if status == FINISHED:
            return "the run keeps no checkpoints (checkpoints=None): its parameters are gone"
        return "nothing is saved, and it cannot be resumed: the run keeps no checkpoints"
    again = command or "luthier.train(graph)"
    if status != FINISHED:
        return f"to resume: {again}"
    # A notebook has no command line, which the two commands below are for.
    if not command:
        return f"the run is in {directory.address}"
    # Twice as long is an example, which can be run as it stands. Options of the command about the
    # run and its length go: they would contradict those that are added.
    longer = f"{_LENGTH.sub('', again)} training.steps={2 * steps}"
    # In an object store by its URL, which these commands find from any folder.
    is_remote = directory.address != str(directory.path)
    name = directory.address if is_remote else directory.id
    extend = f"to extend: {longer} --run {name} --extend"
    if prompt is None:
        return extend
    # A prompt of other text than the model was trained on shows nothing: only that of the config.
    words = ["luthier", "generate", name, *(["--prompt", prompt] if prompt else [])]
    return f"{extend}\nto sample: {shlex.join(words)}"
