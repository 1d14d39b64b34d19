"""S5: one diagonal state space for all channels. Shapes: B rows, L length, D dim, P states."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from luthier.contrib.state_space.recurrence import diagonal_recurrence, forgetful
from luthier.contrib.state_space.spectra import HippoNormal, LogUniform, Spectrum
from luthier.layers.initializers import FanIn, Initializer, Normal, Zeros, describe
from luthier.layers.linear import Linear
from luthier.layers.parameters import DType, Template, create, parameter, value_of, vector, wide
from luthier.layers.positions import Tokens

_GATE = functools.partial(Linear, bias=Zeros())


class S5(nnx.Module):
    r"""A diagonal state space with many inputs and outputs, and a gate.

    $$ x_t = \bar{\Lambda} x_{t-1} + \bar{B} u_t, \qquad
       y_t = 2 \operatorname{Re}(C x_t) + d \odot u_t, \qquad
       \bar{\Lambda} = e^{\Lambda \Delta}, \quad \bar{B} = \Lambda^{-1} (\bar{\Lambda} - I) B, $$

    then `z * sigmoid(z W + b)` with `z = gelu(y)`. It takes the place of attention in a block. The
    state is reset at every segment of a row.

    Args:
      num_states: P, states of positive frequency; each stands for a conjugate pair.
      spectrum: First values of the diagonal of $\Lambda$.
      step: Initializer of the logs of the step sizes $\Delta$, one for every state.
      inputs: Initializer of the real and of the imaginary part of B, as a matrix (D, P).
      outputs: Initializer of the real and of the imaginary part of C, as a matrix (P, D).
      skip: Initializer of d.
      activation: The function from y to z.
      gate: Template of W and b.
      dim: D.
      dtype: Type of the result; the state is complex64 or wider.
      param_dtype: Type that parameters are stored in, real.
      rngs: Random number generators used to initialize the parameters.

    Source: Smith et al. 2022, arXiv:2208.04933, equations 4 to 6 and appendix G.
    Deviation: B is drawn in the eigenbasis, and not rotated into it: for a Gaussian B only the
      relation between conjugates differs. Real parts are held negative by $-e^a$.
    """

    INHERITED: ClassVar[tuple[str, ...]] = ("dim", "dtype", "param_dtype", "rngs")
    # Each state serves all channels, so a wider model has more of them. (Those of S4D are of one
    # channel each, and do not grow.)
    WIDTHS: ClassVar[tuple[str, ...]] = ("num_states",)

    RANGES: ClassVar[dict[str, str]] = {"num_states": "1 <= x", "dim": "1 <= x"}
    RELATIONS: ClassVar[tuple[str, ...]] = ("2 * num_states % spectrum.num_blocks == 0",)

    def __init__(
        self,
        num_states: int,
        spectrum: Spectrum = HippoNormal(),
        step: Initializer = LogUniform(),
        inputs: Initializer = FanIn(0.5),
        outputs: Initializer = FanIn(0.5),
        skip: Initializer = Normal(1.0),
        activation: Callable[[jax.Array], jax.Array] = jax.nn.gelu,
        gate: Template = _GATE,
        *,
        dim: int,
        dtype: DType = jnp.float32,
        param_dtype: DType = jnp.float32,
        rngs: nnx.Rngs,
    ):
        # Complex matrices are stored as two real ones: optimizers, clipping and checkpoints then
        # need no rule for complex numbers. The default initializers have half the variance for each
        # part (`FanIn(0.5)`), so that a complex entry has the usual one.
        kinds = {"dtype": dtype, "param_dtype": param_dtype, "rngs": rngs}
        self.dtype = dtype
        self.activation = activation
        self.decay, self.frequency = eigenvalues(spectrum, num_states, (), param_dtype)
        self.log_step = vector(step, (num_states,), ("state",), param_dtype, rngs)
        into, out = ("embed", "state"), ("state", "embed")
        self.input_real = parameter(inputs, (dim,), (num_states,), into, param_dtype, rngs)
        self.input_imaginary = parameter(inputs, (dim,), (num_states,), into, param_dtype, rngs)
        self.output_real = parameter(outputs, (num_states,), (dim,), out, param_dtype, rngs)
        self.output_imaginary = parameter(outputs, (num_states,), (dim,), out, param_dtype, rngs)
        self.skip = vector(skip, (dim,), ("embed",), param_dtype, rngs)
        embed = {"inputs": (dim,), "input_axes": ("embed",)}
        self.gate = create(gate, **embed, outputs=(dim,), output_axes=("embed",), **kinds)

    def __call__(
        self, x_BLD: jax.Array, tokens: Tokens, dropout: Any = None, bias: Any = None
    ) -> jax.Array:
        """Run over the rows.

        Args:
          x_BLD: [B, L, D].
          tokens: Positions and segments of the tokens.
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
          Zeros, complex64 or wider [B, P].
        """
        kind = jnp.promote_types(wide(self.dtype), jnp.complex64)
        return jnp.zeros((batch_size, self.log_step.shape[0]), kind)

    def decode(
        self,
        x_BLD: jax.Array,
        tokens: Tokens,
        cache: jax.Array,
        cached: Tokens,
        start: jax.Array,
        bias: Any = None,
    ) -> tuple[jax.Array, jax.Array]:
        """Run over new tokens.

        Args:
          x_BLD: The new tokens [B, L, D].
          tokens: Their positions and segments.
          cache: The state before them [B, P].
          cached: Ignored: the state holds all that came before.
          start: Ignored.
          bias: Ignored.

        Returns:
          [B, L, D], and the state after them.
        """
        y_BLD, states_BLP = self.mix(x_BLD, tokens, cache)
        return self._finish(y_BLD), states_BLP[:, -1]

    def mix(
        self, x_BLD: jax.Array, tokens: Tokens, start_BP: jax.Array | None = None
    ) -> tuple[jax.Array, jax.Array]:
        """Return the outputs and the states.

        Args:
          x_BLD: u, [B, L, D].
          tokens: Positions and segments.
          start_BP: The state before the first token; None means zero.

        Returns:
          Float32 or wider [B, L, D], and complex64 or wider [B, L, P].
        """
        # The state is float32 or wider even where the layer computes in bfloat16: it adds up over
        # the whole length. Products with B and C are two real ones each, because the input is real
        # and of the output only the real part is wanted: half of a complex product.
        kind = wide(self.dtype)
        u_BLD = x_BLD.astype(kind)
        decay_P, scale_P = discretized(self.decay, self.frequency, self.log_step, kind)
        real_BLP = u_BLD @ value_of(self.input_real, kind)
        driven_BLP = jax.lax.complex(real_BLP, u_BLD @ value_of(self.input_imaginary, kind))
        decay_BLP = forgetful(decay_P, tokens)
        states_BLP = diagonal_recurrence(decay_BLP, driven_BLP * scale_P, start_BP)
        y_BLD = states_BLP.real @ value_of(self.output_real, kind)
        y_BLD = y_BLD - states_BLP.imag @ value_of(self.output_imaginary, kind)
        return 2 * y_BLD + u_BLD * value_of(self.skip, kind), states_BLP

    def _finish(self, y_BLD: jax.Array) -> jax.Array:
        z_BLD = self.activation(y_BLD.astype(self.dtype))
        return z_BLD * jax.nn.sigmoid(self.gate(z_BLD))


def eigenvalues(
    spectrum: Spectrum, num_states: int, rows: tuple[int, ...], param_dtype: DType
) -> tuple[nnx.Param, nnx.Param]:
    """Make the parameters of a diagonal: the log of minus its real part, and its imaginary part.

    Args:
      spectrum: First values.
      num_states: Number of states.
      rows: Sizes of leading dimensions along which the values repeat.
      param_dtype: Type to store.
    """
    # Stored as log(-Re) and Im: -exp(a) is negative whatever the optimizer does to a, so the state
    # can never grow without bound.
    values = spectrum(num_states)
    axes = (*("embed" for _ in rows), "state")

    def make(values: Any) -> nnx.Param:
        array = jnp.broadcast_to(jnp.asarray(values, param_dtype), (*rows, num_states))
        return nnx.Param(array, logical_axes=axes, initializer=describe(spectrum))

    return make(np.log(-values.real)), make(values.imag)


def discretized(
    decay: nnx.Param, frequency: nnx.Param, log_step: nnx.Param, kind: DType
) -> tuple[jax.Array, jax.Array]:
    r"""Return $e^{\Lambda \Delta}$ and $\Lambda^{-1} (e^{\Lambda \Delta} - 1)$: zero-order hold.

    Args:
      decay: Log of minus the real part of the diagonal.
      frequency: Its imaginary part.
      log_step: Logs of the step sizes.
      kind: Real type that is computed in.

    Source: Smith et al. 2022, arXiv:2208.04933, equation 6.
    """
    diagonal = jax.lax.complex(-jnp.exp(value_of(decay, kind)), value_of(frequency, kind))
    step = jnp.exp(value_of(log_step, kind))
    # One step size for a channel (S4D) or for a state (S5): dimensions are added behind.
    step = step.reshape(*step.shape, *(1,) * (diagonal.ndim - step.ndim))
    # exp(z) - 1 without the loss of digits for the small z of small steps.
    change = jnp.expm1(diagonal * step)
    return change + 1, change / diagonal
