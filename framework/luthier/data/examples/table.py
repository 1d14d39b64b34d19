"""Examples with any entries: numeric targets, masks, several inputs."""

from __future__ import annotations

import abc
import dataclasses
import functools
import hashlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from luthier import user_code
from luthier.data.node import DataNode, Spec, spec
from luthier.data.order import Visit
from luthier.errors import DataError, Problem

Entries = Mapping[str, tuple[tuple[int, ...], Any]]


@dataclasses.dataclass(frozen=True, eq=False)
class TableRows:
    """One example a row.

    Args:
      arrays: The entries of all examples, [examples, ...].
    """

    arrays: Mapping[str, np.ndarray]

    @property
    def num_rows(self) -> int:
        """The number of examples."""
        return len(next(iter(self.arrays.values())))

    @property
    def num_examples(self) -> int:
        """The number of examples."""
        return self.num_rows

    @functools.cached_property
    def digest(self) -> str:
        """A fingerprint of the examples."""
        hasher = hashlib.blake2b(digest_size=16)
        for name, array in sorted(self.arrays.items()):
            hasher.update(f"{name} {array.dtype} {array.shape}".encode())
            hasher.update(np.ascontiguousarray(array).data)
        return hasher.hexdigest()

    def gather(self, rows: np.ndarray, visit: Visit | None = None) -> dict[str, np.ndarray]:
        """Assemble rows.

        Args:
          rows: The rows wanted, int64 [B]; -1 is a row of padding.
          visit: Not used, because nothing is random here.

        Returns:
          The entries [B, ...], with weights float32 [B] and examples int32 [B].
        """
        real = rows >= 0
        batch = {"weights": real.astype(np.float32), "examples": (rows + 1).astype(np.int32)}
        for name, array in self.arrays.items():
            batch[name] = np.zeros((len(rows), *array.shape[1:]), array.dtype)
            batch[name][real] = array[rows[real]]
        return batch


@dataclasses.dataclass(frozen=True)
class Table(DataNode):
    """Examples in memory with any entries, such as numeric targets and masks.

    A data node of your own subclasses this (as a frozen dataclass) and defines `entries` and
    `read`. It is cheap to construct: nothing is read before the first use.

    A batch has every entry, [B, ...], and besides `weights` float32 [B] (0 for padding) and
    `examples` int32 [B] (the number of the example in the data, from 1; 0 for padding). Padding is
    0 in every entry. An entry of your own called `weights` replaces the first of these.

    Raises:
      DataError: at first use, when the arrays are not as `entries` says, or too few.

    Example:
      >>> import dataclasses
      >>> import numpy as np
      >>> from luthier import data
      >>> @dataclasses.dataclass(frozen=True)
      ... class Line(data.Table):
      ...     slope: float = 2.0
      ...
      ...     @property
      ...     def entries(self):
      ...         return {"inputs": ((1,), np.float32), "targets": ((), np.float32)}
      ...
      ...     def read(self):
      ...         x = np.linspace(0, 1, 5, dtype=np.float32)
      ...         return {"inputs": x[:, None], "targets": self.slope * x}
      >>> print(next(Line().batches(global_batch_size=3))["targets"])
      [0.  0.5 1. ]
    """

    @property
    @abc.abstractmethod
    def entries(self) -> Entries:
        """Shape of one example and dtype of every entry, by name; reads no data."""

    @abc.abstractmethod
    def read(self) -> Mapping[str, np.ndarray]:
        """Return all examples.

        Returns:
          An array [examples, ...] for each of `entries`.
        """

    def __str__(self) -> str:
        return f"{type(self).__name__} has {self.num_rows} examples"

    @functools.cached_property
    def rows(self) -> TableRows:
        """The examples by number."""
        found = {name: np.asarray(array) for name, array in self.read().items()}
        name = type(self).__name__
        if "examples" in self.entries:  # luthier identifies examples by them
            raise DataError(Problem(f"{name}.entries has `examples`, which luthier adds itself"))
        if set(found) != set(self.entries) or not found:
            what = f"{name}.read returns {', '.join(found) or 'nothing'}"
            raise DataError(Problem(f"{what}, and `entries` has {', '.join(self.entries)}"))
        problems = []
        for entry, (shape, dtype) in self.entries.items():
            array = found[entry]
            # Without `same_kind`, numeric targets of an integer entry would be cut off in silence.
            fits = array.shape[1:] == tuple(shape) and np.can_cast(array.dtype, dtype, "same_kind")
            if array.ndim and fits:
                continue
            wanted = ",".join(map(str, ("examples", *shape)))
            what = f"{name}.read returns {user_code.described(array)} for {entry}"
            problems.append(Problem(f"{what}, not {np.dtype(dtype)}[{wanted}]"))
        lengths = {entry: array.shape[0] for entry, array in found.items() if array.ndim}
        if not problems and (len(set(lengths.values())) > 1 or not min(lengths.values())):
            counts = ", ".join(f"{length} of {entry}" for entry, length in lengths.items())
            problems.append(Problem(f"{name}.read returns {counts}"))
        if problems:
            raise DataError(problems)
        return TableRows({e: np.asarray(found[e], dtype) for e, (_, dtype) in self.entries.items()})

    @property
    def tokens_per_row(self) -> int:
        """One example."""
        return 1

    def batch_spec(self, global_batch_size: int) -> Spec:
        """Return shape and dtype of every entry of the global batch; no data is read.

        Args:
          global_batch_size: The rows of all processes together.

        Returns:
          Global shape and dtype of every entry.
        """
        rows = {"weights": ((), np.float32), "examples": ((), np.int32)}
        return spec(global_batch_size, **{**rows, **self.entries})

    def describe(self) -> dict[str, Any]:
        """Return the size of the data, by name, as JSON-able values.

        Returns:
          JSON values by name.
        """
        shapes = {name: list(shape) for name, (shape, _) in self.entries.items()}
        return {"rows": self.num_rows, "shapes": shapes}
