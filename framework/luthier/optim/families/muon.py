"""Muon: momentum whose matrices are made nearly orthogonal.

Letters: m fan in, n fan out of a kernel; layers of a scanned stack are matrices of their own.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Protocol

import jax
import jax.numpy as jnp

from luthier.optim.layouts import Layout, Layouts, OptimizerStage, complete
from luthier.optim.masks import DECAYED, MATRICES, ParameterMask
from luthier.optim.optimizer import Optimizer, as_schedule, checker, counted
from luthier.optim.partition import matrices_in, route
from luthier.optim.schedules import Schedule, runtime
from luthier.optim.stages import (
    Arrays,
    MomentumState,
    add_decayed_weights,
    chain,
    clipping,
    scale_by_adam,
    scale_by_learning_rate,
    zeros_like,
)
from luthier.parallel.activations import constrain, current_layout
from luthier.parallel.rules import axis_product
from luthier.parallel.specs import resolve


class UpdateScale(Protocol):
    """The size of the update of a matrix, by its shape."""

    def __call__(self, fan_in: int, fan_out: int, count: jax.Array) -> jax.Array | float:
        """Return the factor of an orthogonal update of `fan_in` x `fan_out`."""


@dataclasses.dataclass(frozen=True)
class SpectralScale:
    r"""Updates of one size as maps, whatever the widths: $\sqrt{\max(1, n / m)}$.

    Learning rates are those of SGD and carry over between widths.

    Example:
      >>> from luthier import optim
      >>> optim.SpectralScale()(fan_in=4, fan_out=16, count=0)
      2.0

    Source: Jordan et al., 2024, "Muon: An optimizer for hidden layers in neural networks"; its
      repository KellerJordan/Muon.
    """

    def __call__(self, fan_in: int, fan_out: int, count: jax.Array) -> float:
        """Return the factor of an orthogonal update.

        Args:
          fan_in: Number of inputs.
          fan_out: Number of outputs.
          count: Ignored.

        Returns:
          The factor.
        """
        return max(1.0, fan_out / fan_in) ** 0.5


@dataclasses.dataclass(frozen=True)
class AdamScale:
    r"""Updates with the root mean square that Adam's have: $\rho \sqrt{\max(m, n)}$.

    Learning rates and weight decay are those of AdamW.

    Args:
      rms: The root mean square of an update, $\rho$.

    Source: Liu et al., 2025, arXiv:2502.16982, equation 4.
    """

    RANGES: ClassVar[dict[str, str]] = {"rms": "0 < x"}

    rms: float = 0.2

    def __call__(self, fan_in: int, fan_out: int, count: jax.Array) -> jax.Array:
        """Return the factor of an orthogonal update.

        Args:
          fan_in: Number of inputs.
          fan_out: Number of outputs.
          count: The number of updates so far, an int32 scalar.

        Returns:
          A float32 scalar.
        """
        # An orthogonal m x n matrix has min(m, n) singular values of 1, so that the mean of its
        # squares is min / (m n) = 1 / max(m, n). The shape is static, its root a Python float.
        return runtime(self.rms, count) * max(fan_in, fan_out) ** 0.5


@dataclasses.dataclass(frozen=True)
class NewtonSchulz:
    r"""An odd polynomial, applied several times, that pushes singular values towards 1.

    With $X = M / (\|M\|_F + \epsilon)$ and $A = X X^T$:

    $$ X \leftarrow a X + (b A + c A^2) X $$

    Its products have the precision of the experiment; float32 by default.

    Args:
      iterations: Number of applications.
      coefficients: $a$, $b$ and $c$. The default overshoots around 1 (singular values end between
        0.7 and 1.2) for the sake of speed near 0; (15/8, -10/8, 3/8) converges.
      eps: Added to the norm, $\epsilon$.

    Source: Jordan et al., 2024, "Muon: An optimizer for hidden layers in neural networks"; the
      iteration is that of Bjorck and Bowie, 1971, SIAM J. Numer. Anal. 8(2).
    """

    RANGES: ClassVar[dict[str, str]] = {"iterations": "1 <= x", "eps": "0 <= x"}

    iterations: int = 5
    coefficients: tuple[float, float, float] = (3.4445, -4.7750, 2.0315)
    eps: float = 1e-7

    def __call__(self, matrices: jax.Array, count: jax.Array) -> jax.Array:
        """Return the matrices [..., m, n] made nearly orthogonal.

        Args:
          matrices: Any matrices, float32.
          count: The number of updates so far.

        Returns:
          Float32 [..., m, n].
        """
        # Only products of matrices, which accelerators are made for; an SVD would be exact, but is
        # a sequential algorithm there. A polynomial odd in X keeps the singular vectors and maps
        # every singular value s to a s + b s^3 + c s^5; the loop is unrolled, as it is short.
        a, b, c = (runtime(x, count) for x in self.coefficients)
        tall = matrices.shape[-2] > matrices.shape[-1]
        # X X^T has the size of the rows, so the shorter side goes there.
        x = matrices.mT if tall else matrices
        # The Frobenius norm bounds the largest singular value: all are in [0, 1], where the
        # iteration does not diverge. It also takes out any common factor of the momentum. (`eps` is
        # for a matrix of zeros, which stays one.)
        x = x / (jnp.linalg.norm(x, axis=(-2, -1), keepdims=True) + runtime(self.eps, count))
        for _ in range(self.iterations):
            square = x @ x.mT
            x = a * x + (b * square + c * (square @ square)) @ x
        return x.mT if tall else x


def orthogonalize_momentum(
    momentum: float, iteration: NewtonSchulz, scale: UpdateScale
) -> OptimizerStage:
    r"""Replace gradients of kernels by their Nesterov momentum, made nearly orthogonal.

    $$ B_t = \mu B_{t-1} + G_t, \quad U_t = s(m, n)\, \mathrm{NewtonSchulz}(G_t + \mu B_t) $$

    Kernels with several input or output dimensions, such as (embed, heads, head_dim), are
    matrices of (fan in, fan out).

    Args:
      momentum: $\mu$.
      iteration: The iteration that makes matrices orthogonal.
      scale: Size of an update, $s$.

    Source: Jordan et al., 2024, "Muon: An optimizer for hidden layers in neural networks",
      algorithm 2, with Nesterov's momentum as its repository has it.
    """

    # No bias correction, unlike Optax's Muon: the momentum is a plain sum, as in Jordan's
    # repository, and the iteration divides by its norm, so that its size does not matter.
    def init(parameters: Arrays, layouts: Layouts | None = None) -> MomentumState:
        complete(parameters, layouts)
        return MomentumState(zeros_like(parameters))

    def update(
        gradients: Arrays,
        state: MomentumState,
        parameters: Any = None,
        *,
        count: jax.Array,
        layouts: Layouts,
        **_: Any,
    ) -> tuple[Any, MomentumState]:
        decay = runtime(momentum, count)
        trace = {n: g + decay * state.trace[n] for n, g in gradients.items()}

        # Heads are not matrices of their own: a query kernel is one map from `embed` to all heads,
        # as it would be if it were stored with two dimensions. Layers of a stack are batched.
        directions = {n: layouts[n].to_matrices(g + decay * trace[n]) for n, g in gradients.items()}
        matrices = _by_device(lambda x: iteration(x, count), directions, layouts)
        updates = {
            n: layouts[n].from_matrices(scale(*layouts[n].matrix_shape, count) * x)
            for n, x in matrices.items()
        }
        return updates, MomentumState(trace)

    return OptimizerStage(init, update)  # type: ignore[arg-type]


def _by_device(
    function: Callable[[jax.Array], jax.Array], matrices: Arrays, layouts: Layouts
) -> Arrays:
    """Apply a function to matrices; those that devices split are exchanged, so that each has some.

    Args:
      function: From [..., m, n] to [..., m, n], for each matrix by itself.
      matrices: [*stacked, m, n] by name.
      layouts: Layout of every kernel.

    Source: Liu et al., 2025, arXiv:2502.16982, section 2.3 (a device iterates on whole matrices).
    """
    # The products of an iteration contract what fsdp splits. Left to the compiler, each of them
    # gathers its factor: nine times the model in a step. Here all matrices of one shape are put
    # together, and one exchange (an all-to-all) gives each device some of them whole, another one
    # brings the results back.
    groups: dict[tuple[Any, ...], list[str]] = {}
    for name in matrices:
        rows, columns = _splitting_axes(layouts[name])
        is_split = rows or columns
        kind = (matrices[name].dtype, layouts[name].matrix_shape)
        key = (rows, columns, kind) if is_split else (name,)
        groups.setdefault(key, []).append(name)
    found = {}
    for key, names in groups.items():
        if len(key) == 1:
            found[names[0]] = function(matrices[names[0]])
            continue
        rows, columns, (_, shape) = key
        flat = [matrices[name].reshape(-1, *shape) for name in names]
        ends = list(itertools.accumulate(len(x) for x in flat))
        # As many for each device. Matrices of zeros stay zeros.
        padding = -ends[-1] % axis_product((*rows, *columns), _sizes())
        together = jnp.pad(jnp.concatenate(flat), ((0, padding), (0, 0), (0, 0)))
        # One side after the other: the compiler knows no exchange of both, and would gather them.
        # The results go back before they are taken apart: parts of a dimension that devices split
        # could only be taken out of it by gathering it.
        steps = [((), rows, columns), (rows, (), columns), ((*rows, *columns), (), ())]
        for axes in steps:
            together = constrain(together, _NAMES, dict(zip(_NAMES, axes, strict=True)))
        together = function(together)
        for axes in reversed(steps):
            together = constrain(together, _NAMES, dict(zip(_NAMES, axes, strict=True)))
        for name, start, end in zip(names, [0, *ends], ends, strict=False):
            found[name] = together[start:end].reshape(matrices[name].shape)
    return {name: found[name] for name in matrices}


_NAMES = ("matrices", "rows of matrices", "columns of matrices")


def _sizes() -> Mapping[str, int]:
    layout = current_layout()
    return {} if layout is None or layout.is_explicit else layout.sizes


def _splitting_axes(layout: Layout) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the mesh axes that split fan in, and fan out; none where matrices need not move."""
    mesh, sizes = current_layout(), _sizes()
    if mesh is None or not sizes or layout.axes is None:
        return (), ()
    inputs, outputs = layout.matrix_axes
    names = (*layout.axes[: layout.num_stacked], inputs.names[-2], outputs.names[-2])
    *stacked, rows, columns = resolve(names, dict(mesh.parameters), sizes)
    if any(dimension.mesh_axes for dimension in stacked):
        return (), ()  # each device has its own layers or experts already
    return rows.mesh_axes, columns.mesh_axes


def muon(
    learning_rate: Schedule | float,
    momentum: float = 0.95,
    iteration: NewtonSchulz = NewtonSchulz(),
    scale: UpdateScale = AdamScale(),
    matrices: ParameterMask = MATRICES,
    adam_learning_rate: Schedule | float | None = None,
    b1: float = 0.9,
    b2: float = 0.95,
    eps: float = 1e-8,
    weight_decay: float = 0.1,
    decay_mask: ParameterMask = DECAYED,
    clip_norm: float | None = 1.0,
) -> Optimizer:
    r"""Muon for the kernels of linear maps, AdamW for all other parameters.

    With $U_t$ of `orthogonalize_momentum` or `scale_by_adam` on the clipped gradient:

    $$ \theta_t = \theta_{t-1} - \eta_t (U_t + \lambda \theta_{t-1}) $$

    Args:
      learning_rate: The learning rate of matrices, $\eta$, or a schedule over the number of
        updates.
      momentum: Decay of the sum of gradients.
      iteration: The iteration that makes matrices orthogonal.
      scale: Size of an update: `AdamScale()` makes it like Adam's, `SpectralScale()` is the
        original one and needs learning rates of about 0.02.
      matrices: The kernels that are optimized as matrices; by default not embeddings and outputs.
      adam_learning_rate: The learning rate of all other parameters; None means the same.
      b1: Decay of Adam's first moment.
      b2: Decay of Adam's second moment.
      eps: Added to the root of Adam's second moment.
      weight_decay: The decay, $\lambda$.
      decay_mask: The parameters that decay; by default not biases, norms and embeddings.
      clip_norm: Limit of the norm of the whole gradient; None for no limit.

    Returns:
      The optimizer.

    Example:
      >>> import jax.numpy as jnp
      >>> import numpy as np
      >>> from luthier import optim
      >>> optimizer = optim.muon(learning_rate=0.1, weight_decay=0.0)
      >>> parameters = {"mlp.kernel": jnp.ones((2, 2))}
      >>> state = optimizer.init(parameters)
      >>> gradients = {"mlp.kernel": jnp.array([[0.5, -0.5], [0.1, 0.2]])}
      >>> updates, state = optimizer.update(gradients, state, parameters)
      >>> print(np.asarray(updates["mlp.kernel"]).round(3))
      [[-0.016  0.013]
       [-0.017 -0.019]]

    Source: Jordan et al., 2024, "Muon: An optimizer for hidden layers in neural networks"; Liu et
      al., 2025, arXiv:2502.16982, algorithm 1 and equation 4.
    """
    # Not a `partition` of two whole optimizers: one clip over the whole gradient comes before the
    # split, one mask of decay serves both, and a kernel is recognised by its layout and not only by
    # its name. Each part scales by a rate of its own, so `assemble`, which has one, does not fit.
    rate = as_schedule(learning_rate)
    adam_rate = rate if adam_learning_rate is None else as_schedule(adam_learning_rate)
    decayed = add_decayed_weights(weight_decay, decay_mask)
    orthogonal = orthogonalize_momentum(momentum, iteration, scale)
    adam = scale_by_adam(b1, b2, eps)
    routed = route(
        {
            "matrices": (
                matrices_in(matrices),
                chain([orthogonal, decayed, scale_by_learning_rate(rate)]),
            ),
            "rest": (
                lambda name, layout: True,
                chain([adam, decayed, scale_by_learning_rate(adam_rate)]),
            ),
        }
    )
    # A rate that is the same is not logged twice.
    rates = {} if adam_learning_rate is None else {"adam": adam_rate}
    check = checker({"matrices": matrices, "decay_mask": decay_mask})
    return Optimizer(counted(chain([clipping(clip_norm), routed])), rate, rates, check)


muon.RANGES = {  # type: ignore[attr-defined]
    "momentum": "0 <= x < 1",
    "b1": "0 <= x < 1",
    "b2": "0 <= x < 1",
    "eps": "0 < x",
    "weight_decay": "0 <= x",
    "clip_norm": "0 < x",
}
