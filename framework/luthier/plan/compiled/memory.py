"""Memory of a compiled program, and what compilers say where there is too little."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

import jax

_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
_TPU = re.compile(r"Used ([\d.]+)([KMGT]?) of ([\d.]+)([KMGT]?) hbm", re.IGNORECASE)
_EXCEEDS = re.compile(
    r"\(([\d.]+)([KMGT]?)i?B?\) exceeds available \w+ \(([\d.]+)([KMGT]?)i?B?\)", re.IGNORECASE
)


@dataclasses.dataclass(frozen=True)
class Memory:
    """Bytes on one device, as the compiler counts them.

    Args:
      arguments: Of the state and the batch that go in.
      outputs: Of what comes out and is not in the place of an argument.
      temporaries: Of all that lives within a step beside them, where most is alive.
      host: Of what waits in the memory of the host.
    """

    arguments: int
    outputs: int
    temporaries: int
    host: int = 0

    @property
    def needed(self) -> int:
        """All that a device must have room for."""
        return self.arguments + self.outputs + self.temporaries


def memory_of(compiled: Any) -> Memory | None:
    """Return the memory of a compiled program; None where the compiler does not tell.

    The temporaries that a TPU's compiler counts hold the places of donated arguments a second time;
    what it compares with the memory of the device, and refuses, is its peak. That in turn counts
    what lives in the memory of a core, which decides for small programs only; so the less of both
    is taken. Elsewhere temporaries are what is allocated beside the arguments.

    Args:
      compiled: What `Lowered.compile` returns.
    """
    told = compiled.memory_analysis()
    if told is None:
        return None
    arguments = told.argument_size_in_bytes
    outputs = told.output_size_in_bytes - told.alias_size_in_bytes
    temporaries = told.temp_size_in_bytes
    if _platform_of(compiled) == "tpu":
        temporaries = min(temporaries, max(0, told.peak_memory_in_bytes - arguments - outputs))
    host = told.host_argument_size_in_bytes + told.host_temp_size_in_bytes
    return Memory(arguments, outputs, temporaries, host)


def _platform_of(compiled: Any) -> str:
    """Return the platform that a program is compiled for, which may be absent."""
    shardings = jax.tree.leaves(compiled.output_shardings)
    return next(iter(shardings[0].device_set)).platform if shardings else ""


@dataclasses.dataclass(frozen=True)
class Refusal:
    """What a compiler says of a program that does not fit.

    Args:
      needed: Bytes that the program needs on one device; None where it is not said.
      limit: Bytes that there are; None where it is not said.
      line: The compiler's own words, in one line.
    """

    needed: int | None
    limit: int | None
    line: str


def refusal(error: Exception) -> Refusal | None:
    """Return what a compiler's error says of memory; None where it is about something else.

    Args:
      error: What `Lowered.compile` raised.
    """
    text = " ".join(str(error).split())
    if "RESOURCE_EXHAUSTED" not in text:
        return None
    found = _TPU.search(text) or _EXCEEDS.search(text)
    if found is None:
        return Refusal(None, None, text[:200])
    used, unit, limit, limit_unit = found.groups()
    return Refusal(_bytes(used, unit), _bytes(limit, limit_unit), found.group())


def _bytes(number: str, unit: str) -> int:
    return int(float(number) * _UNITS[unit.upper()])
