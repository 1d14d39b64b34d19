"""S4D: a diagonal state space for each channel. Shapes: B rows, L length, D dim, N states."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from flax import nnx

from luthier.contrib.state_space.recurrence import diagonal_recurrence, forgetful
from luthier.contrib.state_space.s5 import discretized, eigenvalues
from luthier.contrib.state_space.spectra import LinearSpectrum, LogUniform, Spectrum
from luthier.layers.initializers import Initializer, Normal, Zeros
from luthier.layers.linear import Linear
from luthier.layers.parameters import DType, Template, create, value_of, vector, wide
from luthier.layers.positions import Tokens

_OUTPUT = functools.partial(Linear, bias=Zeros())


class S4D(nnx.Module):
    r"""A diagonal state space of one input and one output for each channel, then a gated map.

    Per channel, with N states of positive frequency and $B = 1$:

    $$ x_t = \bar{A} x_{t-1} + \bar{B} u_t, \qquad
       y_t = 2 \operatorname{Re}(\sum_n C_n x_{t,n}) + d\, u_t, $$

    discretized by zero-order hold; then `(z W1 + b1) * sigmoid(z W2 + b2)` with `z = gelu(y)`. It
    takes the place of attention in a block. The state is reset at every segment of a row.

    Args:
      num_states: N, each stands for a conjugate pair.
      spectrum: First values of the diagonal of A, the same for every channel.
      step: Initializer of the logs of the step sizes, one for every channel.
      weights: Initializer of the real and of the imaginary part of C.
      skip: Initializer of d.
      activation: The function from y to z.
      output: Template of the map to both halves of the gate.
      dim: D.
      dtype: Type of the result; the state is complex64 or wider.
      param_dtype: Type that parameters are stored in, real.
      rngs: Random number generators used to initialize the parameters.

    Source: Gu et al. 2022, arXiv:2206.11893, section 3.
    Deviation: The states of all steps come from an associative scan and not from a convolution by
      the kernel of the system, so that packed texts stay apart: B L D N numbers are held.
    """

    INHERITED: ClassVar[tuple[str, ...]] = ("dim", "dtype", "param_dtype", "rngs")
    RANGES: ClassVar[dict[str, str]] = {"num_states": "1 <= x", "dim": "1 <= x"}

    def __init__(
        self,
        num_states: int = 32,
        spectrum: Spectrum = LinearSpectrum(),
        step: Initializer = LogUniform(),
        weights: Initializer = Normal(0.5**0.5),
        skip: Initializer = Normal(1.0),
        activation: Callable[[jax.Array], jax.Array] = jax.nn.gelu,
        output: Template = _OUTPUT,
        *,
        dim: int,
        dtype: DType = jnp.float32,
        param_dtype: DType = jnp.float32,
        rngs: nnx.Rngs,
    ):
        # Complex parameters are stored as two real ones: optimizers, clipping and checkpoints then
        # need no rule for complex numbers, and weights may be stored in bfloat16. The diagonal is
        # the same for all channels at first and learned apart; step sizes differ from the start.
        kinds = {"dtype": dtype, "param_dtype": param_dtype, "rngs": rngs}
        self.dtype = dtype
        self.activation = activation
        shape, axes = (dim, num_states), ("embed", "state")
        self.decay, self.frequency = eigenvalues(spectrum, num_states, (dim,), param_dtype)
        self.log_step = vector(step, (dim,), ("embed",), param_dtype, rngs)
        self.weights_real = vector(weights, shape, axes, param_dtype, rngs)
        self.weights_imaginary = vector(weights, shape, axes, param_dtype, rngs)
        self.skip = vector(skip, (dim,), ("embed",), param_dtype, rngs)
        embed = {"inputs": (dim,), "input_axes": ("embed",)}
        self.output = create(output, **embed, outputs=(2, dim), output_axes=(None, "mlp"), **kinds)

    def __call__(
        self, x_BLD: jax.Array, tokens: Tokens, dropout: Any = None, bias: Any = None
    ) -> jax.Array:
        """Run over the rows; arguments as for `S5`.

        Args:
          x_BLD: [B, L, D].
          tokens: Positions and segments [B, L]; tokens of segment 0 are padding.
          dropout: Ignored: there are no scores to drop.
          bias: Ignored: there are no scores to add to.

        Returns:
          [B, L, D].
        """
        return self._finish(self.mix(x_BLD, tokens)[0])

    def init_cache(self, batch_size: int, length: int) -> jax.Array:
        """Make the state before the first token.

        Args:
          batch_size: Number of rows, B.
          length: Ignored: the state has no length.

        Returns:
          Zeros, complex64 or wider [B, D, N].
        """
        kind = jnp.promote_types(wide(self.dtype), jnp.complex64)
        return jnp.zeros((batch_size, *self.weights_real.shape), kind)

    def decode(
        self,
        x_BLD: jax.Array,
        tokens: Tokens,
        cache: jax.Array,
        cached: Tokens,
        start: jax.Array,
        bias: Any = None,
    ) -> tuple[jax.Array, jax.Array]:
        """Run over new tokens; arguments as for `S5.decode`, with the state [B, D, N].

        Args:
          x_BLD: The new tokens [B, L, D].
          tokens: Positions and segments [B, L]; tokens of segment 0 are padding.
          cache: The state before them [B, D, N].
          cached: Ignored: the state holds all that came before.
          start: Ignored.
          bias: Ignored.

        Returns:
          [B, L, D], and the state after them [B, D, N].
        """
        y_BLD, states_BLDN = self.mix(x_BLD, tokens, cache)
        return self._finish(y_BLD), states_BLDN[:, -1]

    def mix(
        self, x_BLD: jax.Array, tokens: Tokens, start_BDN: jax.Array | None = None
    ) -> tuple[jax.Array, jax.Array]:
        """Return the outputs and the states.

        Args:
          x_BLD: u, [B, L, D].
          tokens: Positions and segments.
          start_BDN: The state before the first token; None means zero.

        Returns:
          Float32 or wider [B, L, D], and complex64 or wider [B, L, D, N].
        """
        # The state is float32 or wider even where the layer computes in bfloat16: it adds up over
        # the whole length. Of each conjugate pair only one state is kept; the sum of a pair is
        # twice its real part, so Re(C x) is written with real products: Re C Re x - Im C Im x.
        kind = wide(self.dtype)
        u_BLD = x_BLD.astype(kind)
        decay_DN, scale_DN = discretized(self.decay, self.frequency, self.log_step, kind)
        decay_BLDN = forgetful(decay_DN, tokens)
        states_BLDN = diagonal_recurrence(decay_BLDN, u_BLD[..., None] * scale_DN, start_BDN)
        y_BLD = (states_BLDN.real * value_of(self.weights_real, kind)).sum(-1)
        y_BLD = y_BLD - (states_BLDN.imag * value_of(self.weights_imaginary, kind)).sum(-1)
        return 2 * y_BLD + u_BLD * value_of(self.skip, kind), states_BLDN

    def _finish(self, y_BLD: jax.Array) -> jax.Array:
        # Both halves of the gate in one product, [2, D] outputs.
        both_BL2D = self.output(self.activation(y_BLD.astype(self.dtype)))
        return both_BL2D[:, :, 0] * jax.nn.sigmoid(both_BL2D[:, :, 1])
