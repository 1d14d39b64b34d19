"""Forecasting: the task, and the error of the naive forecast that it is compared with."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar, Protocol

import jax
import jax.numpy as jnp

from luthier.layers import DropoutKeys
from luthier.losses import RegressionLoss, SquaredError
from luthier.metrics import (
    LOSS,
    MEAN_ABSOLUTE_ERROR,
    MEAN_ABSOLUTE_SCALED_ERROR,
    MEAN_SQUARED_ERROR,
    Metric,
    Ratio,
)
from luthier.tasks.classification import row_keys
from luthier.tasks.task import Additive, Batch, LossSums
from luthier.tasks.token_ratios import weighted_sum

# The scale that errors of forecasts are measured by. Shapes: B rows, L length, C channels.


def naive_error(inputs_BLC: jax.Array, season: int) -> jax.Array:
    r"""Return the mean absolute error of the seasonal naive forecast within each series.

    $$ \frac{1}{L - m} \sum_{t=m+1}^{L} |x_t - x_{t-m}| $$

    The mean of absolute errors divided by it is the mean absolute scaled error (MASE): below 1 a
    forecast is better than repeating the last season is, on average, one season ahead.

    Args:
      inputs_BLC: The series before the forecast [B, L, C].
      season: Length of a season in steps, m; 1 for none.

    Returns:
      Float32 or wider [B, C]; 0 for a series that repeats itself exactly, or is no longer than
      a season.

    Example:
      >>> import jax.numpy as jnp
      >>> from luthier.contrib import series
      >>> series_BLC = jnp.array([[[1.0], [2.0], [4.0]]])
      >>> print(series.naive_error(series_BLC, season=1))
      [[1.5]]

    Source: Hyndman and Koehler 2006, International Journal of Forecasting 22(4), section 4.
    """
    # The length is static, so series that are too short for a season are known while tracing; the
    # mean of nothing would be NaN.
    x = inputs_BLC.astype(jnp.promote_types(inputs_BLC.dtype, jnp.float32))
    if x.shape[1] <= season:
        return jnp.zeros((x.shape[0], x.shape[2]), x.dtype)
    return jnp.abs(x[:, season:] - x[:, :-season]).mean(1)


# Prediction of the next values of series. Shapes: B rows, L length, H horizon, C channels.


class Forecaster(Protocol):
    """A model of series, such as `PatchTransformer`."""

    def __call__(self, inputs_BLC: jax.Array, *, dropout: DropoutKeys | None) -> jax.Array:
        """Return [B, H, C], or [B, H, C, Q] where the loss is of Q quantiles."""


@dataclasses.dataclass(frozen=True)
class Forecasting:
    """Predicts the next H values of every channel from the last L.

    A batch holds float32 `inputs` [B, L, C], `targets` and `weights` [B, H, C], and int32 [B]
    `examples` (0 for padding). The model is called as `model(inputs, dropout=...)` and returns
    [B, H, C], or [B, H, C, Q] where the loss is of Q quantiles.

    Reported are, beside the loss, errors of the point forecast, which the loss names; the scaled
    error leaves out series whose naive error is 0.

    Args:
      objective: The loss of one value: `SquaredError`, `AbsoluteError`, `Huber` or `Quantiles`.
      season: Steps in a season of the naive forecast that the scaled error compares with.

    Source: the scaled error: Hyndman and Koehler 2006, International Journal of Forecasting 22(4).
    """

    RANGES: ClassVar[dict[str, str]] = {"season": "1 <= x"}
    reduction: ClassVar[Additive] = Additive()
    loss_metrics: ClassVar[tuple[Metric, ...]] = (MEAN_ABSOLUTE_ERROR,)
    metrics: ClassVar[tuple[Metric, ...]] = (
        LOSS,
        MEAN_SQUARED_ERROR,
        MEAN_ABSOLUTE_ERROR,
        MEAN_ABSOLUTE_SCALED_ERROR,
    )
    batch_axes: ClassVar[dict[str, tuple[str | None, ...]]] = {
        "inputs": ("batch", "length", None),
        "targets": ("batch", "length", None),
        "weights": ("batch", "length", None),
        "examples": ("batch",),
    }

    objective: RegressionLoss = SquaredError()
    season: int = 1

    def loss(self, model: Forecaster, batch: Batch, key: jax.Array | None) -> LossSums:
        """Return the summed loss over the summed weights.

        Args:
          model: A forecaster, under the trace.
          batch: A batch, as described above.
          key: Key of this step's dropout, the same for every part of the batch; None for none.

        Returns:
          Numerator and weight of the loss, scalars, with the sums of the metrics of training.
        """
        ratios = self._ratios(model(batch["inputs"], dropout=row_keys(key, batch)), batch)
        return LossSums(ratios[LOSS], {metric: ratios[metric] for metric in self.loss_metrics})

    def evaluate(self, model: Forecaster, batch: Batch) -> dict[Metric, Ratio]:
        """Return every metric of a batch, without dropout; a subclass may add its own.

        Args:
          model: The model, under the trace.
          batch: A batch of the task.

        Returns:
          Sums of each metric over the batch, scalars.
        """
        return self._ratios(model(batch["inputs"], dropout=None), batch)

    def count_tokens(self, batch: Batch) -> Any:
        """Return the number of values with non-zero weight.

        Args:
          batch: A batch of the task.

        Returns:
          An integer scalar of the batch's array type.
        """
        return (batch["weights"] != 0).sum()

    def _ratios(self, predictions: jax.Array, batch: Batch) -> dict[Metric, Ratio]:
        # Every metric is a sum and a weight (`Ratio`), so that batches and microbatches merge
        # exactly. MASE divides each series by its own naive error before the mean, within the row's
        # context, which is what the forecast was made from. A series whose naive error is 0
        # (constant, or repeating exactly) has no scale: it is left out by its weight, and the
        # divisor is made safe, because the NaN of 0 / 0 would survive a weight of 0.
        weights_BHC, targets_BHC = batch["weights"], batch["targets"]
        error_BHC = self.objective.point(predictions) - targets_BHC
        naive_BC = naive_error(batch["inputs"], self.season)
        safe_BC = jnp.where(naive_BC > 0, naive_BC, 1)
        scalable_BHC = jnp.where((naive_BC > 0)[:, None], weights_BHC, 0)
        scaled_BHC = jnp.abs(error_BHC) / safe_BC[:, None]

        def mean(values_BHC: jax.Array, weights_BHC: Any) -> Ratio:
            return Ratio(weighted_sum(values_BHC, weights_BHC), jnp.sum(weights_BHC))

        return {
            LOSS: mean(self.objective(predictions, targets_BHC), weights_BHC),
            MEAN_SQUARED_ERROR: mean(jnp.square(error_BHC), weights_BHC),
            MEAN_ABSOLUTE_ERROR: mean(jnp.abs(error_BHC), weights_BHC),
            MEAN_ABSOLUTE_SCALED_ERROR: mean(scaled_BHC, scalable_BHC),
        }
