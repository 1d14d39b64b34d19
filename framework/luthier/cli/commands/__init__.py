"""One module per command; each has `add_arguments(parser)` and `run(arguments, unknown)`."""

__all__: list[str] = []
