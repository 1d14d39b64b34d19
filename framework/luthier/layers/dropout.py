"""Dropout whose masks belong to tokens, not to array positions.

The mask of a token depends on the step's key, the site in the model, the document and the position
in it, and on nothing else. Hence accumulation, packing, meshes, scanned or unrolled layers and
rematerialization all see the same masks, and gradients agree between them.

Shapes: B rows, L length, D any feature dimensions.
"""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
from collections.abc import Iterator
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from flax import nnx

_fold_each = jax.vmap(jax.vmap(jax.random.fold_in))


@dataclasses.dataclass
class DropoutUse:
    """Whether random numbers were drawn for dropout while a loss was traced.

    Args:
      is_drawn: Some layer drew numbers from its keys.
      is_skipped: Some `Dropout` with a rate had no keys, and returned its input.
    """

    is_drawn: bool = False
    is_skipped: bool = False


_use: contextvars.ContextVar[DropoutUse | None] = contextvars.ContextVar("use", default=None)


@contextlib.contextmanager
def watch_dropout() -> Iterator[DropoutUse]:
    """Record how layers that are called or traced within the context use dropout.

    A task that forgets the keys trains as if it had no dropout, and nothing in the program shows
    it: a call without keys is what evaluation does.
    """
    token = _use.set(use := DropoutUse())
    try:
        yield use
    finally:
        _use.reset(token)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class DropoutKeys:
    """One random key per token, for one site of the model.

    Args:
      token_keys_BL: Typed keys [B, L]; [B, 1] where a row has one key for all of its elements.
    """

    token_keys_BL: jax.Array

    # Why not `jax.random.bernoulli(key, shape=x.shape)`? Its mask belongs to places in the array: a
    # batch that is cut, packed or padded in another way would drop other elements, and gradients
    # with and without microbatches could not be compared. The price is a `fold_in` for each token
    # and site, which is one Threefry block, beside the draws themselves.

    @classmethod
    def of_tokens(
        cls, key: jax.Array, documents_BL: jax.Array, positions_BL: jax.Array
    ) -> DropoutKeys:
        """Key every token by its document and its position there.

        Args:
          key: The step's key.
          documents_BL: Global document ids, int32 [B, L].
          positions_BL: Positions in the document, int32 [B, L].

        Returns:
          The keys of the model's root; parts get theirs by `fold`.
        """
        # Two folds, because document and position are 32 bits each, and `fold_in` takes 32.
        rows = jax.vmap(jax.vmap(jax.random.fold_in, (None, 0)), (None, 0))(key, documents_BL)
        return cls(_fold_each(rows, positions_BL))

    def fold(self, site: int | jax.Array) -> DropoutKeys:
        """Return the keys of a site below this one.

        Args:
          site: Number of the site, such as a layer's index; may be traced.

        Returns:
          Keys, as many as before.
        """
        site = jnp.asarray(site, jnp.uint32)
        of_row = jax.vmap(jax.random.fold_in, (0, None))
        return DropoutKeys(jax.vmap(of_row, (0, None))(self.token_keys_BL, site))

    def uniform(self, shape: tuple[int, ...]) -> jax.Array:
        """Draw uniform numbers for every token.

        Args:
          shape: The shape for one token.

        Returns:
          Float32 [B, L, *shape], in [0, 1).
        """
        if (use := _use.get()) is not None:
            use.is_drawn = True
        draw = lambda key: jax.random.uniform(key, shape, jnp.float32)  # noqa: E731
        return jax.vmap(jax.vmap(draw))(self.token_keys_BL)


def fold(keys: DropoutKeys | None, site: int | jax.Array) -> DropoutKeys | None:
    """Return the keys of a site below, or None where there are none (evaluation).

    Args:
      keys: The keys of the layer; None in evaluation.
      site: Number of the place below, such as that of a layer in a stack; may be traced.

    Returns:
      The keys of the place, as many as there are tokens or examples; None for None.

    Example:
      >>> from luthier import layers
      >>> layers.fold(None, 3) is None
      True
    """
    return None if keys is None else keys.fold(site)


class Dropout(nnx.Module):
    """Sets each element to zero with probability `rate` and scales the others by 1/(1 - rate).

    Args:
      rate: Probability of zero; may be traced.

    Example:
      >>> import jax.numpy as jnp
      >>> from luthier import layers
      >>> print(layers.Dropout(0.5)(jnp.ones((1, 2, 3)), None))  # no keys: evaluation
      [[[1. 1. 1.]
        [1. 1. 1.]]]

    Source: Srivastava et al. 2014, Dropout: a simple way to prevent neural networks from
      overfitting, section 10 (inverted scaling).
    """

    INHERITED: ClassVar[tuple[str, ...]] = ()
    RANGES: ClassVar[dict[str, str]] = {"rate": "0 <= x < 1"}

    def __init__(self, rate: Any = 0.0):
        self.rate = rate

    @property
    def is_active(self) -> bool:
        """Whether it may drop elements in training: a traced rate may be any."""
        return isinstance(self.rate, jax.core.Tracer) or bool(self.rate > 0)

    def __call__(self, x: jax.Array, keys: DropoutKeys | None) -> jax.Array:
        """Drop elements of x.

        Args:
          x: [B, L, ...] with keys [B, L]; with keys of whole rows, [B, 1], any shape [B, ...].
          keys: Keys of this site; None means no dropout.

        Returns:
          The same shape and type.

        Raises:
          ValueError: The keys belong to neither the tokens nor the rows of x.
        """
        if keys is None:
            if (use := _use.get()) is not None and self.is_active:
                use.is_skipped = True
            return x
        shape = keys.token_keys_BL.shape
        if x.shape[:2] == shape:
            uniform = keys.uniform(x.shape[2:])
        elif x.shape[:1] == shape[:1] and shape[1:] == (1,):
            # One key for the whole row, as `tasks.Classification` gives. Without this case the
            # draws for [B, D] would be [B, 1] and broadcast: a row would be dropped as a whole.
            uniform = keys.uniform(x.shape[1:])[:, 0]
        else:
            raise ValueError(
                f"dropout of an array of shape {x.shape} by keys of shape {shape}: the keys need "
                "the first two dimensions of the array, or one key for each of its rows, [B, 1]"
            )
        # No branch on `rate`, which may be a tracer: at rate 0 every draw is below 1, and x is
        # multiplied by 1. The comparison is in float32, so that the share of zeros is right in
        # bfloat16, too. A select and not a product with the mask: 0 times an infinity is NaN.
        keep = jnp.asarray(1.0 - self.rate, jnp.float32)
        is_kept = uniform < keep
        return jnp.where(is_kept, x * (1.0 / keep).astype(x.dtype), jnp.zeros((), x.dtype))
