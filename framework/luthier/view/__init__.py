"""Pages and terminal views of what was compared, planned, run and swept."""

__all__: list[str] = []
