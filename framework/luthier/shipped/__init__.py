"""The experiments and studies that come with luthier; `luthier.folders` has how they are found."""

__all__: list[str] = []
