"""Devices of slices that are planned for, as the compiler sees them; no hardware is touched."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from typing import Any

from luthier.errors import BadInput, Problem
from luthier.plan.targets.chips import GpuChip
from luthier.plan.targets.slices import CpuSlice, GpuSlice, Slice, TpuSlice

_NEEDS = {
    TpuSlice: (("libtpu",), "plan-tpu"),
    GpuSlice: (("jax_plugins.xla_cuda13",), "plan-gpu"),
}


def missing_compiler(slice: Slice) -> str:
    """Return which compiler is not installed for a slice, and how to get it; nothing if it is.

    Args:
      slice: What is planned for.
    """
    modules, extra = _NEEDS.get(type(slice), ((), ""))
    absent = [module for module in modules if not _is_installed(module)]
    if not absent:
        return ""
    kind = "TPU" if isinstance(slice, TpuSlice) else "GPU"
    return f"the {kind} compiler is not installed (pip install 'luthier[{extra}]', Linux x86-64)"


def environment(slice: Slice, given: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a process that compiles for a slice.

    It starts JAX's CPU backend and no other, asks no metadata server, and sees no accelerator.

    Args:
      slice: What is planned for.
      given: The environment to start from.
    """
    made = dict(given)
    made |= {"JAX_PLATFORMS": "cpu", "CUDA_VISIBLE_DEVICES": "", "TPU_SKIP_MDS_QUERY": "1"}
    made |= {"TPU_WORKER_HOSTNAMES": "localhost", "TPU_ACCELERATOR_TYPE": "v4-8"}
    made["ALLOW_MULTIPLE_LIBTPU_LOAD"] = "1"  # beside others that plan, or train on a TPU
    made |= {"JAX_SKIP_CUDA_CONSTRAINTS_CHECK": "1", "TF_CPP_MIN_LOG_LEVEL": "3"}
    made["XLA_FLAGS"] = _device_flag(slice) if isinstance(slice, CpuSlice) else ""
    return made


def devices(slice: Slice) -> list[Any]:
    """Return the devices of a slice, to lay out and to compile for; nothing can run on them.

    Args:
      slice: What is planned for.

    Raises:
      BadInput: The compiler for them is not installed, or does not know the slice.
    """
    told = missing_compiler(slice)
    if told:
        raise BadInput(Problem(told, "--slice", remedy="or plan with --level shapes"))
    if isinstance(slice, CpuSlice):
        return stand_ins(slice)
    from jax.experimental import topologies

    asked: dict[str, Any] = {}
    if isinstance(slice, TpuSlice):
        asked = {"platform": "tpu", "topology_name": slice.topology_name}
        if slice.chip.config != "default":
            asked["chip_config_name"] = slice.chip.config
        bounds = tuple(min(side, 2) for side in (*slice.shape, 1, 1)[:2])
        asked["chips_per_host_bounds"] = (*bounds, 1)
        if slice.num_slices > 1:
            asked["num_slices"] = slice.num_slices
    elif isinstance(slice, GpuSlice):
        name = slice.topology_name
        asked = {"platform": "cuda", "topology_name": name, "topology": name}
        asked["target_config"] = description(slice.chip)
    try:
        return list(topologies.get_topology_desc(**asked).devices)
    except Exception as error:  # of the compiler's own types
        line = str(error).partition("\n")[0]
        raise BadInput(Problem(f"the compiler does not know {slice}: {line}", "--slice")) from error


def stand_ins(slice: Slice) -> list[Any]:
    """Return as many virtual CPU devices as a slice has, to lay arrays out on.

    Args:
      slice: What is planned for.

    Raises:
      BadInput: JAX's CPU backend is up with fewer devices.
    """
    import jax

    found = jax.devices("cpu")
    if len(found) < slice.num_devices:
        what = f"{slice} needs {slice.num_devices} virtual devices, and JAX runs with {len(found)}"
        raise BadInput(Problem(what, "--slice", remedy="plan in a process of its own"))
    return found[: slice.num_devices]


def description(chip: GpuChip) -> str:
    """Return a GPU as XLA's text form of `GpuTargetConfigProto`.

    Args:
      chip: The GPU.
    """
    major, minor = chip.compute_capability
    return f"""
gpu_device_info {{
  threads_per_block_limit: 1024
  threads_per_warp: 32
  shared_memory_per_block: 49152
  shared_memory_per_core: {chip.shared_memory_per_core}
  threads_per_core_limit: 2048
  core_count: {chip.num_cores}
  fpus_per_core: {chip.fpus_per_core}
  block_dim_limit_x: 2147483647
  block_dim_limit_y: 65535
  block_dim_limit_z: 65535
  memory_bandwidth: {int(chip.memory_bandwidth)}
  l2_cache_size: {chip.l2_cache_bytes}
  clock_rate_ghz: {chip.clock_ghz}
  device_memory_size: {chip.memory_bytes}
  shared_memory_per_block_optin: {chip.shared_memory_per_core - 1024}
  cuda_compute_capability {{ major: {major} minor: {minor} }}
  registers_per_core_limit: 65536
  registers_per_block_limit: 65536
}}
platform_name: "CUDA"
dnn_version_info {{ major: 9 minor: 8 }}
runtime_version {{ major: 12 minor: 8 }}
device_description_str: "{chip.device_kind}"
"""


def _device_flag(slice: Slice) -> str:
    return f"--xla_force_host_platform_device_count={slice.num_devices}"


def _is_installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False
