"""The quickstart's model with a byte-pair encoding of 2,048 tokens, learned from the plays.

Paper: Sennrich, Haddow and Birch 2016, "Neural Machine Translation of Rare Words with Subword
  Units", arXiv:1508.07909; the model is that of `configs.lm.quickstart`.
Command: luthier train configs.lm.bpe
Parameters: 1,049,728.
Hardware: 2 CPU cores, under 3 minutes.
Expected: nats_per_byte <= 1.67 on held_out (1.644 on 2026-11-21).

The quickstart trains on 0.9 million bytes, this experiment on 1.3 million. Losses in nats per byte
are comparable between the two.
"""

from luthier import lazy
from luthier.graph import set_value, value
from . import quickstart

with lazy.imports():
    from luthier import data, program


def experiment() -> program.Experiment:
    """Train the quickstart's transformer on byte pairs, learned when the run starts."""
    size = value(2048, name="vocab_size")
    graph = quickstart.experiment()
    graph.name = "bpe"
    set_value(graph, "training.steps", 500)
    graph.model.vocab_size = size
    graph.data.tokenizer = _byte_pairs(size)
    graph.evaluations["held_out"].data.tokenizer = _byte_pairs(size)
    return graph


def _byte_pairs(size: int) -> data.TrainedBpe:
    return data.TrainedBpe(source=data.Shakespeare(split="train"), vocab_size=size)
