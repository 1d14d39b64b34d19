"""What training shows beside its scalars: distributions, texts, images."""

from luthier.train.showing.shows import Shows, check_shows

__all__ = ["Shows", "check_shows"]
