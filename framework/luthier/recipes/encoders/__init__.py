"""Encoders of text and images, and encoder-decoders, in their published sizes."""

from luthier.recipes.encoders.albert import (
    albert,
    albert_base,
    albert_large,
    albert_xlarge,
    albert_xxlarge,
)
from luthier.recipes.encoders.bert import bert, bert_base, bert_large
from luthier.recipes.encoders.pax_bert import pax_bert
from luthier.recipes.encoders.t5 import (
    t5,
    t5_1_1_base,
    t5_1_1_large,
    t5_1_1_small,
    t5_1_1_xl,
    t5_1_1_xxl,
    t5_3b,
    t5_11b,
    t5_base,
    t5_gated,
    t5_large,
    t5_small,
)
from luthier.recipes.encoders.vit import (
    vit,
    vit_b16,
    vit_h14,
    vit_l16,
    vit_mean,
    vit_s16,
    vit_ti16,
)

__all__ = [
    "albert",
    "albert_base",
    "albert_large",
    "albert_xlarge",
    "albert_xxlarge",
    "bert",
    "bert_base",
    "bert_large",
    "pax_bert",
    "t5",
    "t5_1_1_base",
    "t5_1_1_large",
    "t5_1_1_small",
    "t5_1_1_xl",
    "t5_1_1_xxl",
    "t5_3b",
    "t5_11b",
    "t5_base",
    "t5_gated",
    "t5_large",
    "t5_small",
    "vit",
    "vit_b16",
    "vit_h14",
    "vit_l16",
    "vit_mean",
    "vit_s16",
    "vit_ti16",
]
