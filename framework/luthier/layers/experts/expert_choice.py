"""A mixture whose experts choose their tokens.

Shapes: B rows, L length, D embed, E experts, C places of an expert.
"""

from __future__ import annotations

import math
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from flax import nnx

from luthier.layers.dropout import DropoutKeys
from luthier.layers.experts.dispatch import through_places
from luthier.layers.experts.mixture import Mixture, counted_tokens, router_sums
from luthier.layers.experts.routing import RouterLogits
from luthier.layers.experts.stacked import create_each
from luthier.layers.experts.sums import RoutingSums, report
from luthier.layers.parameters import DType, Template, create
from luthier.layers.positions import Tokens


class ExpertChoice(Mixture):
    r"""A mixture of experts of which each takes the tokens of a row that it scores highest.

    $y_t = \sum_{e:\, t \in \mathrm{top}_C(e)} s_{te}\, f_e(x_t) + f_0(x_t)$, with the scores
    $s_t = \mathrm{softmax}(W x_t)$ and $C = \lceil \mathrm{factor}\, L / E \rceil$ tokens of each
    row of L for each expert: the load is balanced as it is. Which tokens an expert takes depends on
    the whole row, so in a decoder later tokens tell on earlier ones: for encoders.

    Args:
      num_experts: E.
      expert: Template of an expert, f_e, such as `GatedMlp`.
      factor: Experts of a token, on average; E at most.
      logits: Template of the map to logits.
      shared: Template of an expert for every token, f_0; None means none.
      dim: D.
      dtype: Type that is computed in.
      param_dtype: Type that parameters are stored in.
      rngs: Supplies the keys of the parameters.

    Source: Zhou et al. 2022, arXiv:2202.09368, section 3.2.
    Deviation: Experts choose within each row, so that rows do not depend on each other.
    """

    INHERITED: ClassVar[tuple[str, ...]] = ("dim", "dtype", "param_dtype", "rngs")
    RANGES: ClassVar[dict[str, str]] = {
        "num_experts": "1 <= x",
        "factor": "0 < x",
        "dim": "1 <= x",
    }
    RELATIONS: ClassVar[dict[str, str]] = {
        "factor <= num_experts": "a token goes to an expert once: lower the factor, or have more"
    }

    def __init__(
        self,
        num_experts: int,
        expert: Template,
        factor: Any = 2.0,
        logits: Template = RouterLogits,
        shared: Template | None = None,
        *,
        dim: int,
        dtype: DType = jnp.float32,
        param_dtype: DType = jnp.float32,
        rngs: nnx.Rngs,
    ):
        inherited = {"dim": dim, "dtype": dtype, "param_dtype": param_dtype}
        self.factor = factor
        self.dtype = dtype
        self.logits = create(logits, num_experts=num_experts, rngs=rngs, **inherited)
        self.experts = create_each(expert, num_experts, factor, rngs, **inherited)
        self.shared = None if shared is None else create(shared, rngs=rngs, **inherited)

    def __call__(
        self,
        x_BLD: jax.Array,
        tokens: Tokens | None = None,
        dropout: DropoutKeys | None = None,
    ) -> jax.Array:
        """Map x [B, L, D] to the same shape in `dtype`; see `Mixture`.

        Padding is taken by no expert. A token is reported as dropped if none takes it.
        """
        counts_BL = counted_tokens(x_BLD, tokens)
        logits_BLE = self.logits(x_BLD, dropout)
        scores_BLE = jax.nn.softmax(logits_BLE)
        (B, L, E), D = logits_BLE.shape, x_BLD.shape[-1]
        C = min(math.ceil(float(self.factor) * L / E), L)
        open_BEL = jnp.swapaxes(jnp.where(counts_BL[..., None], scores_BLE, -1), 1, 2)
        weights_BEC, tokens_BEC = jax.lax.top_k(open_BEL, C)
        tokens_BEC = jnp.where(weights_BEC >= 0, tokens_BEC, L)  # L: a place that stays empty
        tokens_BM, weights_BM = tokens_BEC.reshape(B, -1), weights_BEC.reshape(B, -1)
        x_BMD = jax.vmap(lambda x, at: x.at[at].get(mode="fill", fill_value=0))(x_BLD, tokens_BM)
        y_BMD = through_places(self.experts, x_BMD).astype(weights_BM.dtype)
        empty_LD = jnp.zeros((L, D), weights_BM.dtype)
        y_BLD = jax.vmap(lambda at, y: empty_LD.at[at].add(y, mode="drop"))(
            tokens_BM, y_BMD * weights_BM[..., None]
        )
        self._report(logits_BLE, scores_BLE, counts_BL, tokens_BEC)
        y_BLD = y_BLD.astype(self.dtype)
        return y_BLD if self.shared is None else y_BLD + self.shared(x_BLD)

    def _report(
        self,
        logits_BLE: jax.Array,
        scores_BLE: jax.Array,
        counts_BL: jax.Array,
        tokens_BEC: jax.Array,
    ) -> None:
        B, L = counts_BL.shape
        kind = logits_BLE.dtype
        taken_BL = jnp.zeros((B, L), bool)
        taken_BL = jax.vmap(lambda taken, at: taken.at[at].set(True, mode="drop"))(
            taken_BL, tokens_BEC.reshape(B, -1)
        )
        report(
            RoutingSums(
                **router_sums(logits_BLE, scores_BLE, counts_BL),
                choices_E=jnp.sum(tokens_BEC < L, (0, 2), dtype=kind),
                wanted=jnp.sum(counts_BL, dtype=kind),
                dropped=jnp.sum(counts_BL & ~taken_BL, dtype=kind),
            )
        )
