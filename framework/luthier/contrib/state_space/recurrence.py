"""First-order linear recurrences, all steps in parallel. Shapes: B rows, L length, S state dims."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from luthier.layers.positions import Tokens


def diagonal_recurrence(
    decay_BLS: jax.Array, inputs_BLS: jax.Array, start_BS: jax.Array | None = None
) -> jax.Array:
    r"""Return the states $x_t = a_t x_{t-1} + b_t$ of every step, element by element.

    Pairs $(a, b)$ compose associatively, so L steps take log L rounds.

    Args:
      decay_BLS: $a_t$, [B, L, *S], real or complex.
      inputs_BLS: $b_t$, [B, L, *S].
      start_BS: $x_0$, [B, *S]; None means zero.

    Returns:
      [B, L, *S].

    Example:
      >>> import jax.numpy as jnp
      >>> from luthier.contrib import state_space
      >>> decay_BLS, inputs_BLS = jnp.full((1, 3, 1), 0.5), jnp.ones((1, 3, 1))
      >>> print(state_space.diagonal_recurrence(decay_BLS, inputs_BLS)[0, :, 0])
      [1.   1.5  1.75]

    Source: Blelloch 1990, "Prefix sums and their applications", section 1.4; Smith et al. 2022,
      arXiv:2208.04933, appendix H.
    """

    # (a, b) stands for the map x -> a x + b; composing two of them, the earlier one first, gives (c
    # a, c b + d). The scan therefore returns for each t the map of all steps up to it, whose second
    # part is the state from x_0 = 0, and whose first part, the product of all decays, carries a
    # start that is not zero. A convolution would need decays that do not depend on t, which the
    # boundaries of segments make impossible.
    def compose(first: tuple[jax.Array, jax.Array], then: tuple[jax.Array, jax.Array]) -> tuple:
        (a, b), (c, d) = first, then
        return a * c, c * b + d

    total_BLS, states_BLS = jax.lax.associative_scan(compose, (decay_BLS, inputs_BLS), axis=1)
    if start_BS is None:
        return states_BLS
    return states_BLS + total_BLS * start_BS[:, None]


def forgetful(decay_S: jax.Array, tokens: Tokens) -> jax.Array:
    """Return the decay of every step, 0 at the first token of a segment: documents stay apart.

    Args:
      decay_S: The decay within a text [*S].
      tokens: Positions and segments, [B, L].

    Returns:
      [B, L, *S].
    """
    # A decay of 0 forgets everything before, inside one scan over the whole row: packed documents
    # need no loop over segments.
    segments_BL = tokens.segments_BL
    before_BL = jnp.pad(segments_BL[:, :-1], ((0, 0), (1, 0)), constant_values=-1)
    # The first step keeps its decay: while decoding, what came before is in the start state, and
    # without one that is zero. Only a position of 0 says that a document begins right there.
    same_BL = (segments_BL == before_BL).at[:, 0].set(True) & (tokens.positions_BL > 0)
    same = same_BL.reshape(*same_BL.shape, *(1,) * decay_S.ndim)
    return jnp.where(same, decay_S, jnp.zeros((), decay_S.dtype))
