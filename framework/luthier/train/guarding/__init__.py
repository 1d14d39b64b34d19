"""What ends a run that goes wrong step by step, or that hangs."""

from luthier.train.guarding.divergence import Rise
from luthier.train.guarding.watch import Watch

__all__ = ["Rise", "Watch"]
