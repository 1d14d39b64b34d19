"""The maps of families, one family or a few kindred ones per file."""

from luthier.checkpoint.foreign.families.albert import ALBERT
from luthier.checkpoint.foreign.families.bert import BERT
from luthier.checkpoint.foreign.families.gemma import GEMMA, GEMMA2, GEMMA3
from luthier.checkpoint.foreign.families.gpt2 import GPT2
from luthier.checkpoint.foreign.families.llama import LLAMA, MISTRAL
from luthier.checkpoint.foreign.families.mixtral import MIXTRAL, QWEN3_MOE
from luthier.checkpoint.foreign.families.olmo import OLMO2
from luthier.checkpoint.foreign.families.qwen import QWEN2, QWEN3
from luthier.checkpoint.foreign.families.registry import named, names, of_config
from luthier.checkpoint.foreign.families.t5 import T5, T5_GATED
from luthier.checkpoint.foreign.families.vit import VIT

__all__ = [
    "ALBERT",
    "BERT",
    "GEMMA",
    "GEMMA2",
    "GEMMA3",
    "GPT2",
    "LLAMA",
    "MISTRAL",
    "MIXTRAL",
    "OLMO2",
    "QWEN2",
    "QWEN3",
    "QWEN3_MOE",
    "T5",
    "T5_GATED",
    "VIT",
    "named",
    "names",
    "of_config",
]
