"""Mixtures of experts in the place of a feed-forward layer.

Shapes: B rows, L length, D embed, E experts, K choices of a token.
"""

from __future__ import annotations

import abc
import dataclasses
import math
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from flax import nnx

from luthier.layers.dropout import DropoutKeys
from luthier.layers.experts.dispatch import Capacity, Dispatch, create_each, through_places
from luthier.layers.experts.routing import RoutedExperts, Router, RouterLogits, RoutingSums, report
from luthier.layers.parameters import DType, Template, create
from luthier.layers.positions import Tokens


class ExpertLayer(nnx.Module):
    """A feed-forward layer that sends tokens to experts, and so must know which are padding."""

    @abc.abstractmethod
    def __call__(
        self,
        x_BLD: jax.Array,
        tokens: Tokens | None = None,
        dropout: DropoutKeys | None = None,
    ) -> jax.Array:
        """Apply the layer.

        Args:
          x_BLD: [B, L, D].
          tokens: Positions and segments; tokens of segment 0 are padding. None means no padding.
          dropout: Keys of the tokens at this site; None means no noise.

        Returns:
          [B, L, D].
        """


def feed_forward(
    mlp: Any, x_BLD: jax.Array, tokens: Tokens, dropout: DropoutKeys | None
) -> jax.Array:
    """Apply the feed-forward part of a block; a mixture also gets the tokens.

    Args:
      mlp: An `ExpertLayer`, or a layer that maps each token alone.
      x_BLD: [B, L, D].
      tokens: Positions and segments of the tokens.
      dropout: Keys of the tokens at this site; None means no noise.
    """
    return mlp(x_BLD, tokens, dropout) if isinstance(mlp, ExpertLayer) else mlp(x_BLD)


class Experts(ExpertLayer):
    r"""A mixture of experts: $y_t = \sum_{e \in \mathrm{top}(t)} w_{te}\, f_e(x_t) + f_0(x_t)$.

    Its balance is a matter of the task: see `tasks.Routed`.

    Args:
      num_experts: E.
      router: Template of a `Router`, such as `TopK`.
      expert: Template of an expert, f_e, such as `GatedMlp`.
      dispatch: Movement of tokens to their experts: `Capacity`, `Dropless` or `AllExperts`.
      shared: Template of an expert for every token, f_0; None means none.
      dim: D.
      dtype: Dtype of the computation.
      param_dtype: Dtype of the parameters.
      rngs: Random number generators used to initialize the parameters.

    Example:
      >>> import functools
      >>> import jax.numpy as jnp
      >>> from flax import nnx
      >>> from luthier import layers
      >>> def make():
      ...     return layers.Experts(
      ...         num_experts=4,
      ...         router=functools.partial(layers.TopK, k=2),
      ...         expert=functools.partial(layers.Mlp, hidden_dim=16),
      ...         dim=8,
      ...         rngs=nnx.Rngs(0),
      ...     )
      >>> experts = nnx.eval_shape(make)  # the shapes alone; `make()` makes the arrays
      >>> nnx.eval_shape(lambda layer, x_BLD: layer(x_BLD), experts, jnp.ones((1, 3, 8))).shape
      (1, 3, 8)

    Source: Shazeer et al. 2017, arXiv:1701.06538, equation 1; shared experts: Dai et al. 2024,
      arXiv:2401.06066, equation 9.
    """

    INHERITED: ClassVar[tuple[str, ...]] = ("dim", "dtype", "param_dtype", "rngs")
    RANGES: ClassVar[dict[str, str]] = {"num_experts": "1 <= x", "dim": "1 <= x"}
    RELATIONS: ClassVar[dict[str, str]] = {
        "router.k <= num_experts": "a token goes to an expert once: choose fewer, or have more"
    }

    def __init__(
        self,
        num_experts: int,
        router: Template,
        expert: Template,
        dispatch: Dispatch = Capacity(),
        shared: Template | None = None,
        *,
        dim: int,
        dtype: DType = jnp.float32,
        param_dtype: DType = jnp.float32,
        rngs: nnx.Rngs,
    ):
        inherited = {"dim": dim, "dtype": dtype, "param_dtype": param_dtype}
        # The router is made before the experts: its k is what `create_each` records as the number
        # of experts that a token uses, by which active parameters are counted.
        self.dispatch = dispatch
        self.dtype = dtype
        self.router: Router = create(router, num_experts=num_experts, rngs=rngs, **inherited)
        self.experts = create_each(expert, num_experts, self.router.k, rngs, **inherited)
        self.shared = None if shared is None else create(shared, rngs=rngs, **inherited)

    def __call__(
        self,
        x_BLD: jax.Array,
        tokens: Tokens | None = None,
        dropout: DropoutKeys | None = None,
    ) -> jax.Array:
        """Apply the layer; see `ExpertLayer`.

        Padding takes no place, counts nothing, and goes to the shared expert only.

        Args:
          x_BLD: [B, L, D].
          tokens: Positions and segments; tokens of segment 0 are padding. None means no padding.
          dropout: Keys of the tokens at this site; None means no noise.

        Returns:
          [B, L, D] in `dtype`.
        """
        # Padding is given expert number E, which no dispatch has: it must not take the places of
        # tokens, nor count in the shares of the load-balance loss.
        choice = self.router(x_BLD, dropout)
        counts_BL = counted_tokens(x_BLD, tokens)
        num_experts = choice.logits_BLE.shape[-1]
        experts_BLK = jnp.where(counts_BL[..., None], choice.experts_BLK, num_experts)
        choice = dataclasses.replace(choice, experts_BLK=experts_BLK)
        y_BLD, dropped = self.dispatch(self.experts, x_BLD, choice)
        report(_sums(choice, counts_BL, dropped))
        y_BLD = y_BLD.astype(self.dtype)
        return y_BLD if self.shared is None else y_BLD + self.shared(x_BLD)


def counted_tokens(x_BLD: jax.Array, tokens: Tokens | None) -> jax.Array:
    """Return a mask of the tokens that are not padding, bool [B, L]."""
    if tokens is None:
        return jnp.ones(x_BLD.shape[:2], bool)
    return tokens.segments_BL != 0


def router_sums(
    logits_BLE: jax.Array, probabilities_BLE: jax.Array, counts_BL: jax.Array
) -> dict[str, jax.Array]:
    """Return the entries of `RoutingSums` that depend on the router alone.

    Args:
      logits_BLE: Float32 [B, L, E].
      probabilities_BLE: Float32 [B, L, E].
      counts_BL: Mask of the tokens that count, bool [B, L].
    """
    # Sums and never means: a microbatch, a device or a layer of a scan adds its own, and the task
    # divides once. A mean of means would weight a padded part like a full one.
    log_z_BL = jax.nn.logsumexp(logits_BLE, -1)
    return {
        "tokens": jnp.sum(counts_BL, dtype=logits_BLE.dtype),
        "probabilities_E": jnp.sum(jnp.where(counts_BL[..., None], probabilities_BLE, 0), (0, 1)),
        "squared_log_z": jnp.sum(jnp.where(counts_BL, jnp.square(log_z_BL), 0)),
    }


def _sums(choice: RoutedExperts, counts_BL: jax.Array, dropped: jax.Array) -> RoutingSums:
    # `one_hot` gives number E (padding) an all-zero row, so padding is in no sum.
    E = choice.logits_BLE.shape[-1]
    chosen_BLKE = jax.nn.one_hot(choice.experts_BLK, E, dtype=choice.logits_BLE.dtype)
    choices_E = jnp.sum(chosen_BLKE, (0, 1, 2))
    known = router_sums(choice.logits_BLE, choice.probabilities_BLE, counts_BL)
    return RoutingSums(**known, choices_E=choices_E, wanted=jnp.sum(choices_E), dropped=dropped)


# A mixture whose experts choose their tokens.
#
# Shapes: B rows, L length, D embed, E experts, C places of an expert.


class ExpertChoice(ExpertLayer):
    r"""A mixture of experts of which each takes the tokens of a row that it scores highest.

    $y_t = \sum_{e:\, t \in \mathrm{top}_C(e)} s_{te}\, f_e(x_t) + f_0(x_t)$, with the scores
    $s_t = \mathrm{softmax}(W x_t)$ and $C = \lceil \mathrm{factor}\, L / E \rceil$ tokens of each
    row of L for each expert: the load is balanced as it is. Which tokens an expert takes depends on
    the whole row, so in a decoder later tokens would influence earlier ones: for encoders.

    Args:
      num_experts: E.
      expert: Template of an expert, f_e, such as `GatedMlp`.
      factor: Experts of a token, on average; E at most.
      logits: Template of the map to logits.
      shared: Template of an expert for every token, f_0; None means none.
      dim: D.
      dtype: Dtype of the computation.
      param_dtype: Dtype of the parameters.
      rngs: Random number generators used to initialize the parameters.

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
        """Apply the layer; see `ExpertLayer`.

        Padding is taken by no expert. A token is reported as dropped if none takes it.

        Args:
          x_BLD: [B, L, D].
          tokens: Positions and segments; tokens of segment 0 are padding. None means no padding.
          dropout: Keys of the tokens at this site; None means no noise.

        Returns:
          [B, L, D] in `dtype`.
        """
        counts_BL = counted_tokens(x_BLD, tokens)
        logits_BLE = self.logits(x_BLD, dropout)
        scores_BLE = jax.nn.softmax(logits_BLE)
        # Each expert takes its C best tokens. Padding scores -1, below every softmax, so it is
        # taken last, and those places are recognized by the sign of their weight; in a row of much
        # padding an expert has more places than there are tokens.
        (B, L, E), D = logits_BLE.shape, x_BLD.shape[-1]
        C = min(math.ceil(float(self.factor) * L / E), L)
        open_BEL = jnp.swapaxes(jnp.where(counts_BL[..., None], scores_BLE, -1), 1, 2)
        weights_BEC, tokens_BEC = jax.lax.top_k(open_BEL, C)
        tokens_BEC = jnp.where(weights_BEC >= 0, tokens_BEC, L)  # L: a place that stays empty
        tokens_BM, weights_BM = tokens_BEC.reshape(B, -1), weights_BEC.reshape(B, -1)
        # No `counted`, as in `Capacity`: without padding in a row every place holds a token.
        x_BMD = jax.vmap(lambda x, at: x.at[at].get(mode="fill", fill_value=0))(x_BLD, tokens_BM)
        y_BMD = through_places(self.experts, x_BMD).astype(weights_BM.dtype)
        # Here a token may be at several places or at none, so the way back is a scatter-add, in
        # float32, and not the gather of `Capacity`.
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
        # A token counts as dropped if no expert took it. Booleans are set, not added, so a token
        # that several experts took is counted once.
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
