"""Attention by the core that suits the platform, the lengths of rows and what is asked of it.

Shapes: B rows, L queries, S keys, H heads, G key and value heads, K head_dim.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from luthier.layers.attention import blocks
from luthier.layers.attention.biases import Bias
from luthier.layers.attention.blockwise import BlockwiseAttention
from luthier.layers.attention.cores import Core, EinsumAttention
from luthier.layers.attention.cudnn import LARGEST_HEAD, TYPES, CudnnAttention, largest_head
from luthier.layers.attention.kernels import MASKS, are_kernels_allowed
from luthier.layers.attention.masks import AttentionMask, Causal
from luthier.layers.attention.splash import LANES, SplashAttention
from luthier.layers.declared import chosen
from luthier.layers.dropout import DropoutKeys
from luthier.layers.positions import Tokens
from luthier.parallel import current_layout, current_platform, is_explicit

# Scores up to so many times so many are few. Processor time on a CPU, by tools/bench/attention.py
# (2026-11-26): blocks take 1.13 times that of einsum for rows of 512 tokens, 0.83 times for 1,024,
# 0.66 times for 8,192.
_CPU_FEW, _FEW = 512, 1024


class CoreChoice(NamedTuple):
    """The core that attends, and why.

    Args:
      core: The core.
      reasons: Keys of `CHOICE_REASONS`.
    """

    core: Core
    reasons: tuple[str, ...]


CHOICE_REASONS = {
    "kernel": "the device has this kernel, with all that is asked for",
    "kernels": "the device's kernels are not asked for (kernels=False)",
    "packed": "trials that are batched together have no kernels",
    "traced": "the device's kernel has its scale, window and cap compiled in",
    "few": "the scores are few enough to be kept",
    "many": "the scores are too many to be kept",
    "whole": "the bias is made for whole rows",
    "explicit": "the axes of the mesh are explicit",
    "mask": "the device's kernel does not have the mask",
    "cap": "the device's kernel has no caps",
    "bias": "the device's kernel adds no bias",
    "sinks": "the device's kernel has no sinks",
    "dropout": "the device's kernel does not drop weights",
    "dtype": "the device's kernel attends in bfloat16 and float16 only",
    "heads": "the device's kernel has no heads of this size",
    "rows": "the device's kernel needs rows of a multiple of 128 tokens",
    "tokens": "queries and keys are not of the same tokens",
    "split": "the mesh splits the length of rows",
    "device": "the device has no such kernel",
}


@dataclasses.dataclass(frozen=True)
class AutoAttention:
    """The attention of `EinsumAttention` by the core that suits the device and the rows.

    That is `EinsumAttention` as long as the scores are few: up to 512 x 512 for each head of a row
    on CPUs, 1,024 x 1,024 elsewhere. Beyond, it is `BlockwiseAttention`, with blocks of 256 tokens
    on CPUs and of 1,024 elsewhere, unless a bias is made for whole rows. With `kernels`, it is
    `CudnnAttention` on GPUs and `SplashAttention` on TPUs first, where they have the type, the
    sizes, the mask and the terms.

    It is the default of `Attention` and of every model. The choice is made when a program is
    traced, at each call: new tokens of a decoder have another core than the rows of a training
    step. `luthier plan` shows it with its reasons, and `plan.json` of a run records it. The core
    never changes what is computed, but for rounding. Masks and biases of your own are called for
    blocks of long rows, so they must follow from the tokens that they are given. For the kernels,
    the tokens of a document must also be adjacent and in their order, as all of luthier's data are.

    Args:
      mask: The attention mask: the keys that each query may look at.
      scale: Factor of the scores; None means 1 / sqrt(K).
      cap: Upper bound of the scores; None means no cap.
      dropout: Probability of dropping a weight; None means no dropout.
      kernels: Whether the kernels of GPUs and TPUs may be chosen; never for packed trials
        (`lanes="vmap"`). luthier has not run JAX's Splash on a TPU.
      max_documents: Most documents of a row on GPUs, for cuDNN's kernel; see `CudnnAttention`.

    Example:
      >>> from luthier import layers
      >>> core = layers.AutoAttention(cap=50.0)
      >>> core.choose((1, 256, 4, 64), (1, 256, 2, 64), "float32").core
      EinsumAttention(mask=Causal(), scale=None, cap=50.0, dropout=None)
      >>> type(core.choose((1, 8192, 4, 64), (1, 8192, 2, 64), "float32").core).__name__
      'BlockwiseAttention'
    """

    EXECUTION: ClassVar[tuple[str, ...]] = ("kernels", "max_documents")
    RANGES: ClassVar[dict[str, str]] = {**EinsumAttention.RANGES, **CudnnAttention.RANGES}

    mask: AttentionMask = Causal()
    scale: float | None = None
    cap: float | None = None
    dropout: float | None = None
    kernels: bool = False
    max_documents: int = 16

    def document_limit(self, device: Any) -> int | None:
        """Return the most documents of a row on a device; None where there is no limit.

        Args:
          device: A device of JAX.

        Returns:
          `max_documents` where cuDNN's kernel may be chosen, else None.
        """
        if not self.kernels or type(self.mask) not in MASKS or self.cap is not None:
            return None
        return None if self._cudnn.without_kernel(device) else self.max_documents

    def choose(
        self,
        query_shape: Sequence[int],
        key_shape: Sequence[int],
        dtype: Any,
        *,
        bias: Bias | None = None,
        drops: bool = False,
        is_within: bool = True,
        has_sinks: bool = False,
    ) -> CoreChoice:
        """Return the core for arrays of given shapes, on the platform of the trace, and why.

        Args:
          query_shape: (B, L, H, K).
          key_shape: (B, S, G, K).
          dtype: Type of queries, keys and values.
          bias: Makes the bias that is added to the scores; None means no bias.
          drops: Whether weights are dropped.
          is_within: Whether queries and keys are of the same tokens.
          has_sinks: Whether heads have sinks.

        Returns:
          The core and the reasons.
        """
        settings = self.mask, self.scale, self.cap, self.dropout
        platform, layout = current_platform(), current_layout()
        on_cpu = platform in ("", "cpu")
        if is_explicit() and layout is not None and layout.mesh.size > 1:
            return CoreChoice(EinsumAttention(*settings), ("explicit",))
        reasons: list[str] = []
        if not on_cpu:
            is_within &= query_shape[1] == key_shape[1]
            asked = {"bias": bias is not None, "dropout": drops, "tokens": not is_within}
            asked["sinks"] = has_sinks and platform == "gpu"
            lacking = self._lacking(platform, query_shape, dtype, asked)
            if not lacking:
                if platform == "gpu":
                    return CoreChoice(self._cudnn, ("kernel",))
                splash = SplashAttention(self.mask, self.scale, self.cap)
                return CoreChoice(splash, ("kernel",))
            reasons.append(lacking)
        few = _CPU_FEW if on_cpu else _FEW
        if query_shape[1] * key_shape[1] <= few**2:
            return CoreChoice(EinsumAttention(*settings), ("few", *reasons))
        if not blocks.is_open(bias):
            return CoreChoice(EinsumAttention(*settings), ("whole", *reasons))
        core = BlockwiseAttention(*settings, blocks.size_for(platform))
        return CoreChoice(core, ("many", *reasons))

    def __call__(
        self,
        query_BLHK: jax.Array,
        key_BSGK: jax.Array,
        value_BSGK: jax.Array,
        query: Tokens,
        key: Tokens,
        dropout: DropoutKeys | None = None,
        bias: Bias | None = None,
        *,
        sinks_H: jax.Array | None = None,
    ) -> jax.Array:
        """Attend; see `EinsumAttention`.

        Args:
          query_BLHK: Queries [B, L, H, K].
          key_BSGK: Keys [B, S, G, K]; query head h uses key head h // (H / G).
          value_BSGK: Values [B, S, G, K].
          query: Positions and segments of the queries [B, L].
          key: Positions and segments of the keys [B, S].
          dropout: Keys of the tokens at this site; None means no dropout.
          bias: Makes the bias that is added to the scores; None means no bias.
          sinks_H: The scores of the heads' sinks [H], float32 or wider; None means no sinks.

        Returns:
          [B, L, H, K] in the type of the queries; zero for queries that may see nothing.
        """
        found = self.choose(
            query_BLHK.shape,
            key_BSGK.shape,
            query_BLHK.dtype,
            bias=bias,
            drops=self.dropout is not None and dropout is not None,
            # The kernels take documents and order of the keys for those of the queries. The texts
            # of a translation may be equally long, so shapes alone do not tell.
            is_within=query is key,
            has_sinks=sinks_H is not None,
        )
        sinks: dict[str, Any] = {} if sinks_H is None else {"sinks_H": sinks_H}
        with chosen(type(found.core).__name__, found.reasons):
            return found.core(query_BLHK, key_BSGK, value_BSGK, query, key, dropout, bias, **sinks)

    @property
    def _cudnn(self) -> CudnnAttention:
        return CudnnAttention(self.mask, self.scale, self.max_documents)

    def _lacking(
        self,
        platform: str,
        query_shape: Sequence[int],
        dtype: Any,
        asked: dict[str, bool],
    ) -> str:
        """Return the first reason against the device's kernel; an empty string if there is none."""
        _, length, _, size = query_shape
        layout, on_gpu = current_layout(), platform == "gpu"
        assert layout is not None  # or else there is no platform
        device = layout.mesh.devices.flat[0]
        # Where a plan knows the chip but not its compiler, CPU devices stand in for it.
        is_known = on_gpu and device.platform != "cpu"
        largest = largest_head(device) if is_known else LARGEST_HEAD
        settings = self.scale, self.cap, getattr(self.mask, "size", None)
        problems = {
            "packed": not are_kernels_allowed(),
            "device": platform not in ("gpu", "tpu"),
            "mask": type(self.mask) not in MASKS,  # a subclass may compute another one
            "traced": any(isinstance(setting, jax.core.Tracer) for setting in settings),
            **asked,
            "split": bool(layout.mesh_axes("length")),
            "cap": on_gpu and self.cap is not None,
            "dtype": on_gpu and jnp.dtype(dtype) not in TYPES,
            "heads": on_gpu and (bool(size % 8) or size > largest),
            "rows": not on_gpu and bool(length % LANES),
            "kernels": not self.kernels,  # last: said where nothing else is in the way
        }
        found = [reason for reason, is_problem in problems.items() if is_problem]
        if is_known and not found and self._cudnn.without_kernel(device):
            found.append("device")
        return found[0] if found else ""
