"""A model beside a copy of itself that no optimizer touches: a reference, or a teacher."""

from __future__ import annotations

from typing import Any, ClassVar

import jax.numpy as jnp
from flax import nnx

from luthier.layers import AXES, Template, create


class Held(nnx.Variable):
    """The value of a parameter in a copy: part of the state, below `variables/`, never trained."""


class WithCopy(nnx.Module):
    """A model, `trained`, and a copy of it, `copy`, which starts out equal.

    The copy's parameters are variables of the state: they are saved and restored with it, and only
    a task's updates change them. It is the reference of preference losses, and the teacher of
    self-distillation. In all else this is the trained model.

    Args:
      model: Template of the model.
      rngs: Random number generators used to initialize its parameters.
    """

    INHERITED: ClassVar[tuple[str, ...]] = ("rngs",)

    def __init__(self, model: Template, *, rngs: nnx.Rngs):
        self.trained = create(model, rngs=rngs)
        self.copy = hold(self.trained)

    def followed(self, decay: Any) -> dict[str, Any]:
        r"""Return the copy moved towards the model: $c + (1 - d) (\theta - c)$.

        Args:
          decay: d.

        Returns:
          Arrays by the name of the variable in this module, for a task's updates.

        Source: Tarvainen and Valpola 2017, arXiv:1703.01780, equation 2.
        """
        # Not d c + (1 - d) theta: for d near one, 1 - d is exact where `decay` is hoisted (its
        # complement), and a copy that equals the model stays equal to it, to the bit.
        own = _by_name(nnx.state(self.copy, Held))
        new = _by_name(nnx.state(self.trained, nnx.Param))
        return {f"copy.{name}": old + (1 - decay) * (new[name] - old) for name, old in own.items()}

    def __call__(self, *inputs: Any, **described: Any) -> Any:
        """Call the trained model.

        Args:
          *inputs: Positional arguments of the model.
          **described: Keyword arguments of the model.

        Returns:
          The result of the model.
        """
        return self.trained(*inputs, **described)

    def hidden(self, *inputs: Any, **described: Any) -> Any:
        """Return the trained model's hidden states.

        Args:
          *inputs: Positional arguments of the model.
          **described: Keyword arguments of the model.

        Returns:
          Hidden states [B, L, D].
        """
        return self.trained.hidden(*inputs, **described)

    def logits(self, hidden: Any) -> Any:
        """Return the trained model's logits.

        Args:
          hidden: Hidden states [B, L, D].

        Returns:
          Logits [B, L, V].
        """
        return self.trained.logits(hidden)

    def init_cache(self, batch_size: int, length: int) -> Any:
        """Make an empty cache of the trained model.

        Args:
          batch_size: Number of rows, B.
          length: Most tokens of a row.

        Returns:
          The cache, a pytree.
        """
        return self.trained.init_cache(batch_size, length)

    def decode(self, tokens_BL: Any, cache: Any) -> Any:
        """Append tokens to the rows of the trained model.

        Args:
          tokens_BL: The next L >= 1 tokens of each row, int32 [B, L].
          cache: The result of `init_cache` or of the last call.

        Returns:
          The logits after the last token [B, V], and the cache for the next call.
        """
        return self.trained.decode(tokens_BL, cache)


def hold(module: Any) -> Any:
    """Return a copy of a module whose parameters are `Held` variables, under the same names.

    Args:
      module: Any module; its other variables are copied as they are.

    Returns:
      The copy; it shares no array with `module`.

    Example:
      >>> import jax.numpy as jnp
      >>> from flax import nnx
      >>> from luthier import models
      >>> linear = nnx.Linear(2, 3, rngs=nnx.Rngs(0))
      >>> type(models.hold(linear).kernel).__name__
      'Held'
    """
    # The type of the variable decides what the step does with it: `nnx.Param` is trained, all
    # else is a variable of the state. Names stay, so that the copy can be merged and followed by
    # name. Of the metadata only the axes are kept: the copy is sharded like the model, but has no
    # initializer, and no optimizer looks at its inputs. The arrays are copied: outside of a trace
    # both would otherwise be one buffer, which cannot be donated twice.
    copy = nnx.clone(module)
    for _, part in nnx.iter_modules(copy):
        for name, value in list(vars(part).items()):
            if isinstance(value, nnx.Param):
                metadata = {k: v for k, v in value.get_metadata().items() if k == AXES}
                setattr(part, name, Held(jnp.array(value[...], copy=True), **metadata))
    return copy


def _by_name(state: Any) -> dict[str, Any]:
    flat = nnx.to_flat_state(state)
    return {".".join(map(str, path)): variable.get_value() for path, variable in flat}
