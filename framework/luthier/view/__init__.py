"""Pages and terminal views of comparisons, plans, runs and sweeps."""

__all__: list[str] = []
