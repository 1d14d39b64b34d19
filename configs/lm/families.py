"""Small byte-level language models of Shakespeare's plays, one for each family of decoders.

Paper: Touvron et al. 2023, arXiv:2302.13971 (Llama); Gemma Team 2025, arXiv:2503.19786 (Gemma 3);
  Radford et al. 2019, "Language Models are Unsupervised Multitask Learners" (GPT-2); Yang et al.
  2025, arXiv:2505.09388 (Qwen 3); OLMo et al. 2024, arXiv:2501.00656 (OLMo 2).
Command: luthier train configs.lm.families
Parameters: 855,168.
Hardware: 2 CPU cores, under 2 minutes.
Expected: nats_per_byte <= 1.74 on held_out (1.714 on 2026-11-21), for `experiment`, the Llama. The
  docstring of each other function states its own result.
"""

from luthier import lazy
from . import quickstart

with lazy.imports():
    from luthier import models, program
    from luthier.recipes import decoders

# Bytes and two special tokens; about as many parameters as the quickstart's model.
SIZES = {"vocab_size": 258, "dim": 128, "num_heads": 4, "pad_to_multiple": 8}


def experiment() -> program.Experiment:
    """Train a Llama, which differs from the quickstart in initial weights and epsilon."""
    return llama()


def llama() -> program.Experiment:
    """Train a Llama.

    Command: luthier train configs.lm.families:llama
    Parameters: 855,168.
    Hardware: 2 CPU cores, under 2 minutes.
    Expected: nats_per_byte <= 1.74 on held_out (1.714 on 2026-11-21).
    """
    model = decoders.llama(**SIZES, num_layers=4, num_kv_heads=2, hidden_dim=384)
    return _train("llama", model)


def mistral() -> program.Experiment:
    """Train a Mistral with a sliding window of 32 bytes.

    Command: luthier train configs.lm.families:mistral
    Parameters: 855,168.
    Hardware: 2 CPU cores, under 2 minutes.
    Expected: nats_per_byte <= 1.72 on held_out (1.693 on 2026-11-21).
    """
    sizes = {"num_layers": 4, "num_kv_heads": 2, "hidden_dim": 384}
    return _train("mistral", decoders.mistral(window=32, **SIZES, **sizes))


def gpt2() -> program.Experiment:
    """Train a GPT-2 without dropout, for less than one epoch.

    Command: luthier train configs.lm.families:gpt2
    Parameters: 843,520.
    Hardware: 2 CPU cores, under 2 minutes.
    Expected: nats_per_byte <= 1.96 on held_out (1.928 on 2026-11-21).
    """
    model = decoders.gpt2(**SIZES, num_layers=4, max_length=128, dropout_rate=None)
    return _train("gpt2", model)


def gemma() -> program.Experiment:
    """Train a Gemma 3 with two local layers for each global layer.

    Command: luthier train configs.lm.families:gemma
    Parameters: 822,656.
    Hardware: 2 CPU cores, under 3 minutes.
    Expected: nats_per_byte <= 1.67 on held_out (1.639 on 2026-11-21).
    """
    heads = {"num_kv_heads": 2, "head_dim": 32, "query_scalar": 32}
    turns = {"num_layers": 4, "locals_per_global": 2, "window": 32}
    return _train("gemma", decoders.gemma3(**SIZES, **heads, **turns, hidden_dim=384))


def qwen() -> program.Experiment:
    """Train a Qwen 3.

    Command: luthier train configs.lm.families:qwen
    Parameters: 855,424.
    Hardware: 2 CPU cores, under 2 minutes.
    Expected: nats_per_byte <= 1.71 on held_out (1.675 on 2026-11-21).
    """
    sizes = {"num_layers": 4, "num_kv_heads": 2, "head_dim": 32, "hidden_dim": 384}
    return _train("qwen", decoders.qwen3(**SIZES, **sizes))


def olmo() -> program.Experiment:
    """Train an OLMo 2.

    Command: luthier train configs.lm.families:olmo
    Parameters: 855,936.
    Hardware: 2 CPU cores, under 2 minutes.
    Expected: nats_per_byte <= 1.74 on held_out (1.710 on 2026-11-21).
    """
    model = decoders.olmo2(**SIZES, num_layers=4, num_kv_heads=2, hidden_dim=384)
    return _train("olmo", model)


def _train(name: str, model: models.Decoder) -> program.Experiment:
    graph = quickstart.experiment()
    graph.name, graph.model = name, model
    return graph
