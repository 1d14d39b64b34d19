"""XLA compile options, by platform.

They belong to a program and not to the process: they are passed when the program is compiled. So
they apply whether or not a backend has started, may differ between trials of a sweep, are the same
where a plan compiles for other devices, and are part of the key of the compilation cache.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
from jax.sharding import SingleDeviceSharding

from luthier.errors import Problem, ValidationError

Option = bool | int | float | str | None

_UNKNOWN = re.compile(r"No such compile option")
_BAD_VALUE = re.compile(r"While setting option \w+, (.*)")
_OUTSIDE = re.compile(
    r"dump|profil|cache|linker|ptxas|cuda_data"
    r"|(?:^|_)(?:dirs?|directory|files?|paths?|filename|prefix|plugin|libs?|library|extra|config|load"
    r"|tool|url|endpoint)(?:_|$)"
)
"""Options that name files or tools. Running a recorded config must not write or execute anything
that its author chose, so these are accepted in the environment only."""
_MIB = 2**20
_KNOWN = (
    "xla_backend_optimization_level",
    "xla_cpu_enable_fast_math",
    "xla_cpu_multi_thread_eigen",
    "xla_disable_hlo_passes",
    "xla_gpu_all_gather_combine_threshold_bytes",
    "xla_gpu_all_reduce_combine_threshold_bytes",
    "xla_gpu_autotune_level",
    "xla_gpu_enable_command_buffer",
    "xla_gpu_enable_latency_hiding_scheduler",
    "xla_gpu_enable_pipelined_all_gather",
    "xla_gpu_enable_pipelined_all_reduce",
    "xla_gpu_enable_pipelined_reduce_scatter",
    "xla_gpu_enable_triton_gemm",
    "xla_gpu_enable_while_loop_double_buffering",
    "xla_gpu_graph_min_graph_size",
    "xla_gpu_memory_limit_slop_factor",
    "xla_gpu_reduce_scatter_combine_threshold_bytes",
    "xla_jf_spmd_threshold_for_windowed_einsum_mib",
    "xla_llvm_disable_expensive_passes",
    "xla_tpu_enable_async_collective_fusion",
    "xla_tpu_scoped_vmem_limit_kib",
)
"""Option names to suggest for a misspelt one; compilers have many more."""


def gpu_options() -> dict[str, Option]:
    """Return the default options of programs for GPUs.

    The latency-hiding scheduler starts collectives early and waits for them late. Collectives are
    combined up to sizes that saturate the links, which keeps the layers of a stack apart; sizes are
    those of the results, so that a reduce-scatter over 8 devices reads 8 times as much. With these
    sizes, unrolled layers (`fiddler:gpu`) gather parameters and reduce gradients beside products.
    Loops over layers do not: `xla_gpu_enable_pipelined_all_gather` makes theirs overlap, but then
    XLA keeps residuals of the layers twice (18.7 instead of 10.2 GiB for the case
    `dense-a100-accumulation` of tools/bench/plan.py, JAX 0.10.2), so it is not set. cuDNN's
    kernels are left out of CUDA graphs: XLA prepares them while it records a graph, which ends in
    "capturing stream has unjoined work" at the third step (seen with JAX 0.11.2 in 4 of 14 runs
    with `CudnnAttention` on an H200; https://github.com/jax-ml/jax/issues/27599).

    Source: JAX documentation, "GPU performance tips" (scheduler, combining); MaxText,
      configs/gpu/a3 (sizes).
    """
    return {
        "xla_gpu_enable_latency_hiding_scheduler": True,
        "xla_gpu_enable_command_buffer": "FUSION,CUBLAS,CUBLASLT,CUSTOM_CALL",
        "xla_gpu_all_gather_combine_threshold_bytes": 128 * _MIB,
        "xla_gpu_all_reduce_combine_threshold_bytes": 128 * _MIB,
        "xla_gpu_reduce_scatter_combine_threshold_bytes": 16 * _MIB,
    }


def tpu_options() -> dict[str, Option]:
    """Return the default options of programs for TPUs.

    Where `fsdp` splits parameters over all devices, the compiler would not gather a kernel, but
    multiply by one of its parts at a time, pass the parts on, and add up the results. That hides
    the links, but reads and writes the activations once for every device. A threshold that no
    product reaches rules it out. Plans of the 350M model with `fiddler:fsdp fiddler:tpu` on v5e-8
    then move 252 instead of 478 GB in a step, in 8,000 instead of 56,000 kernels (JAX 0.10.2).

    Source: Wang et al. 2023, Overlap communication with dependent computation via decomposition in
      large deep learning models (the decomposition).
    """
    return {"xla_jf_spmd_threshold_for_windowed_einsum_mib": 1_000_000}


def quick_cpu_options() -> dict[str, Option]:
    """Return options with which XLA compiles for a CPU in about two thirds of the time.

    Machine code is optimized less. Before version 0.11, JAX's compiler can also emit the kernels of
    a program in a few modules instead of one each, which cost the same even for small kernels.
    Steps take as long, or up to a fifth longer (`tools/bench/compile.py`).

    Returns:
      Option names and values, for `compiler.cpu` of an experiment.

    Example:
      >>> from luthier import parallel
      >>> parallel.quick_cpu_options()["xla_backend_optimization_level"]
      1
    """
    options: dict[str, Option] = {"xla_backend_optimization_level": 1}
    if jax.__version_info__ < (0, 11):
        options["xla_cpu_use_fusion_emitters"] = False
    return options


class Refused(NamedTuple):
    """An option that a compiler rejects.

    Args:
      path: Its path in the options: `gpu.xla_gpu_autotune_level`.
      what: The problem, as one clause.
      nearest: Names that may have been meant.
    """

    path: str
    what: str
    nearest: tuple[str, ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class XlaOptions:
    """Options of XLA by their own names, such as `xla_gpu_autotune_level`, for each platform.

    Only those of the target platform are passed to the compiler. None keeps XLA's default. Unknown
    options and invalid values are rejected, and so are options that name files or tools, such as
    `xla_dump_to`, which belong into XLA_FLAGS.

    Args:
      cpu: Options of programs that run on CPUs.
      gpu: Options of programs that run on GPUs.
      tpu: Options of programs that run on TPUs.

    Example:
      >>> from luthier import parallel
      >>> options = parallel.XlaOptions(cpu={"xla_backend_optimization_level": 1})
      >>> options.of("cpu")
      {'xla_backend_optimization_level': 1}
    """

    cpu: dict[str, Option] = dataclasses.field(default_factory=dict)
    gpu: dict[str, Option] = dataclasses.field(default_factory=gpu_options)
    tpu: dict[str, Option] = dataclasses.field(default_factory=tpu_options)

    def of(self, platform: str) -> dict[str, bool | int | float | str]:
        """Return the options to compile a program with.

        Args:
          platform: `cpu`, `gpu` or `tpu`.

        Returns:
          Values by option.

        Raises:
          ValidationError: One of them names files or tools.
        """
        own = self._set(platform)
        outside = [_names_outside(platform, name) for name in own if _OUTSIDE.search(name.lower())]
        if outside:
            raise ValidationError([Problem(it.what, f"compiler.{it.path}") for it in outside])
        return own

    def _set(self, platform: str) -> dict[str, bool | int | float | str]:
        own = {"cpu": self.cpu, "gpu": self.gpu, "tpu": self.tpu}.get(platform, {})
        return {name: option for name, option in own.items() if option is not None}

    def refused(self, devices: Sequence[jax.Device]) -> list[Refused]:
        """Return the options that the compiler of some devices rejects.

        Args:
          devices: Devices to compile for, local or not.

        Returns:
          The options, each with the reason.
        """
        # No API lists the options of a compiler, so it is asked: a trivial program is compiled with
        # all of them, and only if that fails with each by itself, to find out which ones are wrong.
        # All devices are of one kind, so one of them answers for all. The first of a mesh may be
        # that of another process, and a program for it alone would have no device in this one; if
        # all are absent, as in a plan, any serves, since the program is compiled and not run. Where
        # each is accepted by itself, nothing is reported: the error of the step's own compilation
        # names what is wrong with the combination.
        own = [device for device in devices if device.process_index == jax.process_index()]
        device = (own or devices)[0]
        every = self._set(device.platform)
        # Options that name files are not tried: the compiler would write them right away.
        found = [_names_outside(device.platform, x) for x in every if _OUTSIDE.search(x.lower())]
        options = {name: x for name, x in every.items() if not _OUTSIDE.search(name.lower())}
        if _refusal(device, tuple(options.items())) is None:
            return found
        for name, option in options.items():
            message = _refusal(device, ((name, option),))
            if message is None:
                continue
            path, bad = f"{device.platform}.{name}", _BAD_VALUE.search(message)
            what, near = message, list[str]()
            if _UNKNOWN.search(message):
                what = f"XLA has no option {name!r} for a {device.platform.upper()}"
                near = difflib.get_close_matches(name, _KNOWN, n=2)
            elif bad is not None:
                what = bad[1].rstrip(".")
            found.append(Refused(path, what, tuple(near)))
        return found


def _names_outside(platform: str, name: str) -> Refused:
    what = f"{name!r} names files or tools; set it in XLA_FLAGS"
    return Refused(f"{platform}.{name}", what, ())


@functools.lru_cache(maxsize=256)
def _refusal(device: jax.Device, options: tuple[tuple[str, Option], ...]) -> str | None:
    """Return the compiler's error about options; None where it accepts them."""
    # Cached, because each plan and each trial checks the same options again. The error is that of
    # XLA's status, whose first line is `INVALID_ARGUMENT: reason`.
    if not options:
        return None
    scalar = jax.ShapeDtypeStruct((), "int32", sharding=SingleDeviceSharding(device))
    compiler_options: dict[str, Any] = dict(options)
    try:
        jax.jit(lambda x: x).lower(scalar).compile(compiler_options)
    except jax.errors.JaxRuntimeError as error:
        return str(error).partition("\n")[0].partition(": ")[2]
    return None
