"""Histograms, text samples and images, taken from the state between steps.

Histograms are counted on the devices, where the parameters are.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from luthier.durations import Progress
from luthier.errors import BadInput, Problem
from luthier.parallel import hosts
from luthier.program import Program
from luthier.program.program import Leaves
from luthier.records import Histogram, Histograms, Image, Sample
from luthier.trainer.cadence import is_due
from luthier.trainer.trained import can_generate, sample_text

PREFIX = "parameters/"


def chosen_parameters(program: Program, settings: Histograms) -> list[str]:
    """Return the names of the parameters that histograms are made of, of numbers only."""
    return [
        name
        for name, placement in program.placements.items()
        if name.startswith(PREFIX)
        and jnp.issubdtype(placement.dtype, jnp.number)
        and re.search(settings.pattern, name[len(PREFIX) :])
    ]


def make_histograms(
    program: Program, settings: Histograms
) -> Callable[[Leaves, int], Iterator[Histogram]]:
    """Return a function from a state and its step to a histogram of every chosen parameter.

    One compiled call counts all of them; only the counts leave the devices.

    Args:
      program: The program of the state.
      settings: The parameters and the number of bins.
    """
    names = chosen_parameters(program, settings)

    def count(arrays: dict[str, jax.Array]) -> Any:
        return {name: count_bins(array, settings.num_bins) for name, array in arrays.items()}

    # One program for all parameters, instead of a dispatch and a transfer for each. Replicated
    # results are whole on every device: XLA inserts the sums over shards, and no parameter leaves
    # its device.
    counted = jax.jit(count, out_shardings=program.replicated)

    def histograms(leaves: Leaves, step: int) -> Iterator[Histogram]:
        state = program.named(leaves)
        found = jax.device_get(counted({name: state[name] for name in names}))
        for name in names:
            low, high, counts = found[name]
            own = name[len(PREFIX) :]
            yield Histogram(step, own, float(low), float(high), counts.tolist())

    return histograms


def count_bins(array: jax.Array, num_bins: int) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Return the least and the greatest entry, and how many lie in each bin between them.

    Entries that are not finite are left out. Where all are one number, the bins reach half a unit
    below and above it, as NumPy's.

    Args:
      array: An array of any shape.
      num_bins: Number of bins of one width; the last one holds its upper edge too.

    Returns:
      The lower and the upper edge, float32 scalars, and the counts, int32 [num_bins].

    Example:
      >>> import jax.numpy as jnp
      >>> from luthier import trainer
      >>> low, high, counts = trainer.count_bins(jnp.array([0.0, 1.0, 4.0]), num_bins=2)
      >>> print(low, high, counts)
      0.0 4.0 [2 1]
    """
    entries = array.astype(jnp.float32).ravel()
    finite = jnp.isfinite(entries)
    # With `initial`, min and max of an array without finite entries are infinite; 0 stands for both
    # then, and the bins lie around it.
    some = finite.any()
    low = jnp.where(some, jnp.min(entries, initial=jnp.inf, where=finite), 0)
    high = jnp.where(some, jnp.max(entries, initial=-jnp.inf, where=finite), 0)
    one = low == high
    low, high = jnp.where(one, low - 0.5, low), jnp.where(one, high + 0.5, high)
    place = jnp.where(finite, (entries - low) / (high - low) * num_bins, 0)
    bins = jnp.clip(jnp.floor(place), 0, num_bins - 1).astype(jnp.int32)
    # Entries that are not finite are put into bin 0 and add 0 there: shapes must not depend on
    # values.
    counts = jnp.zeros(num_bins, jnp.int32).at[bins].add(finite.astype(jnp.int32))
    return low, high, counts


# Emits what `records.histograms`, `records.samples` and `records.images` ask for, when due.


class Shows:
    """Looks at a state between steps; where nothing is asked for, it does nothing.

    Args:
      program: The program of the state.
      emit: Takes the events.
    """

    def __init__(self, program: Program, emit: Callable[[Any], None]):
        records = program.experiment.records
        self._program = program
        self._emit = emit
        self._kinds = {
            name: (settings.every, show)
            for name, settings, show in (
                ("histograms", records.histograms, self._show_histograms),
                ("samples", records.samples, self._show_samples),
                ("images", records.images, self._show_images),
            )
            if settings is not None and settings.every is not None
        }
        self._histograms: Any = None

    def due(self, before: Progress, now: Progress) -> list[str]:
        """Return the kinds that are due between two moments.

        Args:
          before: Progress at the previous step.
          now: Progress at this step.

        Returns:
          Kinds, such as `samples`.
        """
        return [name for name, (every, _) in self._kinds.items() if is_due(every, before, now)]

    def show(
        self, kinds: list[str], step: int, leaves: Leaves, batch: Mapping[str, jax.Array]
    ) -> None:
        """Emit what is due.

        Args:
          kinds: The result of `due`.
          step: Steps done.
          leaves: The state after them.
          batch: The batch of the last one.
        """
        for name in kinds:
            self._kinds[name][1](step, leaves, batch)

    def _show_histograms(self, step: int, leaves: Leaves, batch: Any) -> None:
        if self._histograms is None:
            settings = self._program.experiment.records.histograms
            assert settings is not None
            self._histograms = make_histograms(self._program, settings)
        for histogram in self._histograms(leaves, step):
            self._emit(histogram)

    def _show_samples(self, step: int, leaves: Leaves, batch: Any) -> None:
        settings = self._program.experiment.records.samples
        assert settings is not None
        texts = sample_text(
            self._program,
            leaves,
            settings.prompts,
            max_new_tokens=settings.num_tokens,
            temperature=settings.temperature,
            seed=settings.seed,
        )
        for index, (prompt, text) in enumerate(zip(settings.prompts, texts, strict=True)):
            self._emit(Sample(step, jax.device_get(text), prompt, name=f"training/{index}"))

    def _show_images(self, step: int, leaves: Leaves, batch: Mapping[str, jax.Array]) -> None:
        settings = self._program.experiment.records.images
        assert settings is not None
        rows = np.asarray(jax.device_get(batch[settings.entry][: settings.num_rows]))
        self._emit(Image(step, f"data/{settings.entry}", tile(rows)))


def tile(images: np.ndarray) -> np.ndarray:
    """Return images side by side, as nearly a square as can be, with the whole range of grey.

    Args:
      images: [rows, height, width, channels] of any numbers, with 1, 3 or 4 channels.

    Returns:
      uint8 [height, width, channels]; from the least number, black, to the greatest, white.
      Places without an image are black.

    Example:
      >>> import numpy as np
      >>> from luthier import trainer
      >>> trainer.tile(np.zeros((3, 8, 8, 1))).shape
      (16, 16, 1)
    """
    rows, height, width, channels = images.shape
    across = math.ceil(math.sqrt(rows))
    down = math.ceil(rows / across)
    # In float64: `max - min` of small integers, and of large floats, overflows in their own type.
    wide = np.nan_to_num(images.astype(np.float64))
    span = wide.max() - wide.min()
    scaled = (wide - wide.min()) * (255 / span if span else 0)
    grid = np.zeros((across * down, height, width, channels), np.uint8)
    grid[:rows] = np.rint(scaled)
    return (
        grid.reshape(down, across, height, width, channels)
        .swapaxes(1, 2)
        .reshape(down * height, across * width, channels)
    )


def check_shows(program: Program) -> None:
    """Reject `records` settings that the experiment cannot show.

    Args:
      program: The program.

    Raises:
      BadInput: All problems at once.
    """
    records, problems = program.experiment.records, []
    for name in ("histograms", "samples", "images"):
        settings = getattr(records, name)
        # They bring arrays to the host, and `device_get` takes only arrays that this process
        # addresses as a whole.
        if settings is not None and settings.every is not None and hosts.process_count() > 1:
            remedy = f"set records.{name}=None"
            what = "cannot be shown while several processes train"
            problems.append(Problem(what, f"records.{name}", remedy=remedy))
    samples = records.samples
    if samples is not None and samples.every is not None and not can_generate(program):
        remedy = "set records.samples=None"
        what = "the model or the data cannot generate text"
        problems.append(Problem(what, "records.samples", remedy=remedy))
    if records.histograms is not None and not chosen_parameters(program, records.histograms):
        what = f"no parameter name matches {records.histograms.pattern!r}"
        problems.append(Problem(what, "records.histograms.pattern"))
    if records.images is not None:
        problems += _image_problems(program, records.images.entry)
    if problems:
        raise BadInput(problems)


def _image_problems(program: Program, entry: str) -> list[Problem]:
    path = "records.images.entry"
    found = program.batch.get(entry)
    if found is None:
        return [Problem(f"a batch has no {entry}; it has {', '.join(program.batch)}", path)]
    if len(found.shape) != 4 or found.shape[-1] not in (1, 3, 4):
        shape = list(found.shape)
        what = f"{entry} {shape} is not a batch of images [rows, height, width, 1, 3 or 4 channels]"
        return [Problem(what, path)]
    return []
