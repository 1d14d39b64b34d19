"""Tasks: what a domain's batch means, as a loss and as metrics."""

from luthier.tasks.language_modelling import LanguageModelling
from luthier.tasks.task import Additive, BatchCoupled, LossSums, Reduction, Task

__all__ = ["Additive", "BatchCoupled", "LanguageModelling", "LossSums", "Reduction", "Task"]
