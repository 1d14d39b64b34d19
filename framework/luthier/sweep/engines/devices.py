"""The devices of this machine, cut into slices, each seen by one process only."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence

from luthier import environment as environments
from luthier.errors import BadInput, Problem, RunError

_FORM = "write kind:number or kind:i,j,...: cpu:8, cuda:4, cuda:0,2, tpu:4"
_COUNTING = "import jax, json; d = jax.local_devices(); print(json.dumps([d[0].platform, len(d)]))"
_KINDS = {"gpu": "cuda"}
_TPU_BOUNDS = {1: "1,1,1", 2: "1,2,1", 4: "2,2,1", 8: "2,4,1"}


@dataclasses.dataclass(frozen=True)
class Devices:
    """Devices of one kind.

    Args:
      kind: `cpu`, `cuda`, `rocm` or `tpu`.
      numbers: Which of the machine's, by number; those of the kind `cpu` are virtual.
    """

    kind: str
    numbers: tuple[int, ...]

    @classmethod
    def parse(cls, text: str) -> Devices:
        """Read `cpu:8` or `cuda:0,2`.

        Raises:
          BadInput: The text reads otherwise.
        """
        found = re.fullmatch(r"(cpu|cuda|gpu|rocm|tpu):(\d+(?:,\d+)*)", text)
        numbers = [int(number) for number in found[2].split(",")] if found else []
        if found and len(numbers) == 1:
            numbers = list(range(numbers[0]))
        if not found or not numbers or len(set(numbers)) < len(numbers):
            raise BadInput(Problem(f"cannot read the devices {text!r}", "devices", remedy=_FORM))
        return cls(_KINDS.get(found[1], found[1]), tuple(numbers))

    @classmethod
    def here(cls) -> Devices:
        """Return the devices that this machine has, as a process of its own counts them.

        Raises:
          RunError: JAX cannot say.
        """
        told = subprocess.run([sys.executable, "-c", _COUNTING], capture_output=True, text=True)
        try:
            kind, number = json.loads(told.stdout.splitlines()[-1])
        except (ValueError, IndexError):
            lines = told.stderr.strip().splitlines() or ["it says nothing"]
            what = f"JAX finds no devices: {lines[-1]}"
            raise RunError(Problem(what, "devices", remedy=_FORM)) from None
        return cls(_KINDS.get(kind, kind), tuple(range(number)))


@dataclasses.dataclass(frozen=True)
class Slice:
    """Devices that one worker sees.

    Args:
      name: What people call it.
      kind: Of its devices.
      devices: Their numbers on this machine.
      cores: Cores that its threads run on; all where it is empty.
    """

    name: str
    kind: str
    devices: tuple[int, ...]
    cores: tuple[int, ...] = ()


def cut(devices: Devices, slices: int | Mapping[str, int]) -> list[Slice]:
    """Cut devices into slices.

    Args:
      devices: What there is.
      slices: The number of equal slices, or the number of devices of each slice by its name.

    Raises:
      BadInput: The devices do not suffice, or are not divisible.
    """
    there = len(devices.numbers)
    if isinstance(slices, int):
        if slices < 1 or there % slices:
            what = f"{there} devices cannot be cut into {slices} equal slices"
            fitting = [n for n in range(1, there + 1) if there % n == 0]
            remedy = f"use one of {', '.join(map(str, fitting))}, or name the size of each slice"
            raise BadInput(Problem(what, "slices", remedy=remedy))
        slices = {str(i): there // slices for i in range(slices)}
    wanted = sum(slices.values())
    empty = [name for name, number in slices.items() if number < 1]
    if empty or not slices or wanted > there:
        what = f"slices of {wanted} devices do not fit {there} devices"
        what = f"slice {empty[0]} has no device" if empty else what
        raise BadInput(
            Problem(what, "slices", remedy="give each at least one, and all at most all")
        )
    found, numbers = [], iter(devices.numbers)
    for (name, number), cores in zip(slices.items(), _cores(len(slices)), strict=True):
        own = tuple(next(numbers) for _ in range(number))
        found.append(Slice(name, devices.kind, own, cores))
    return found


def _cores(num_slices: int) -> list[tuple[int, ...]]:
    """Share the cores of this process out; slices share them where there are too few."""
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    each = len(cores) // num_slices
    if num_slices == 1 or not each:
        return [()] * num_slices
    return [tuple(cores[i * each : (i + 1) * each]) for i in range(num_slices)]


def environment(
    slice: Slice, inherited: Mapping[str, str], search: Sequence[str | os.PathLike[str]] = ()
) -> dict[str, str]:
    """Return the environment of a slice's worker.

    It sees the slice's devices alone, keeps what it compiles on the disk for all workers, and
    inherits no Weights & Biases service: what that records would end with this process's name.

    Args:
      slice: What it works on.
      inherited: The environment of this process.
      search: Folders that its modules are looked for in, before others.
    """
    made = {name: value for name, value in inherited.items() if name != "WANDB_SERVICE"}
    numbers = ",".join(map(str, slice.devices))
    made["JAX_PLATFORMS"] = slice.kind
    if slice.kind == "cpu":
        count = "--xla_force_host_platform_device_count"
        flags = [f for f in made.get("XLA_FLAGS", "").split() if not f.startswith(count)]
        made["XLA_FLAGS"] = " ".join([*flags, f"{count}={len(slice.devices)}"])
        made.pop("JAX_NUM_CPU_DEVICES", None)
        if slice.cores:
            made["OMP_NUM_THREADS"] = str(len(slice.cores))
    elif slice.kind == "cuda":
        made["CUDA_VISIBLE_DEVICES"] = _among(made.get("CUDA_VISIBLE_DEVICES"), slice.devices)
    elif slice.kind == "rocm":
        made["ROCR_VISIBLE_DEVICES"] = _among(made.get("ROCR_VISIBLE_DEVICES"), slice.devices)
    elif slice.kind == "tpu":
        made |= {"TPU_VISIBLE_CHIPS": numbers, "TPU_PROCESS_BOUNDS": "1,1,1"}
        bounds = _TPU_BOUNDS.get(len(slice.devices), f"1,{len(slice.devices)},1")
        made["TPU_CHIPS_PER_PROCESS_BOUNDS"] = bounds
    made |= environments.large_pages(made)
    made |= environments.kept_programs(made, shortest=0)
    made["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
    made["JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES"] = "0"
    paths = [*map(str, search), *filter(None, [made.get("PYTHONPATH")])]
    if paths:
        made["PYTHONPATH"] = os.pathsep.join(paths)
    return made


def _among(visible: str | None, numbers: Sequence[int]) -> str:
    """Return the names of devices by number among those that this process may see."""
    names = visible.split(",") if visible else []
    return ",".join(names[i] if i < len(names) else str(i) for i in numbers)
