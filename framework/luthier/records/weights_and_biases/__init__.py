"""The mirror of a run in Weights & Biases."""

from luthier.records.weights_and_biases.node import Mirrored, Wandb, rebuild

__all__ = ["Mirrored", "Wandb", "rebuild"]
