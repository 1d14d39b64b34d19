"""The mirror of a run in Weights & Biases, and the run that sums up many."""

from luthier.records.weights_and_biases.node import Mirrored, Wandb, rebuild
from luthier.records.weights_and_biases.summary import Summary, mirror_summary

__all__ = ["Mirrored", "Summary", "Wandb", "mirror_summary", "rebuild"]
