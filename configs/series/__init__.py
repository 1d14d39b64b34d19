"""Series: classes, and forecasts."""
