"""The scale that errors of forecasts are measured by. Shapes: B rows, L length, C channels."""

from __future__ import annotations

import jax
import jax.numpy as jnp


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

    Source: Hyndman and Koehler 2006, International Journal of Forecasting 22(4), section 4.
    """
    x = inputs_BLC.astype(jnp.promote_types(inputs_BLC.dtype, jnp.float32))
    if x.shape[1] <= season:
        return jnp.zeros((x.shape[0], x.shape[2]), x.dtype)
    return jnp.abs(x[:, season:] - x[:, :-season]).mean(1)
