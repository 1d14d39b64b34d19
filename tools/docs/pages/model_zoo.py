"""The page of published models: their sizes, and the tests of their logits."""

from __future__ import annotations

import dataclasses
import inspect
import math
import re
from typing import Any

START = """\
# Model zoo

This page lists all models of a published size. Each one is a function of `luthier.recipes`. The
function returns the model as a template (an `fdl.Partial`) without parameters, and you set it as
the `model` of an experiment:

```python
import luthier
from luthier.recipes import decoders

config = luthier.experiment("quickstart")
config.model = decoders.gpt2_small()
```

The number of parameters is counted from the model that the recipe describes. It includes the output
layer, and counts a shared array once.

The hub type is the `model_type` in the `config.json` of a Hugging Face folder. You can import
weights of these types. You do not need a recipe for this, because the folder specifies its own
sizes: write `hf:DIR` instead ([Pretrained models](../how_to/pretrained.md)).

For each family, a test compares the logits of a small model with those of another implementation.
"""


@dataclasses.dataclass(frozen=True)
class Family:
    """A family of models.

    Args:
      title: Its name.
      sizes: Recipes of published sizes: a regular expression for `module.function` below
        luthier.recipes.
      test: The test of its logits.
      reference: What the test compares with.
      hub: Its name in `luthier.checkpoint.foreign.families`; empty if no weights can be imported.
    """

    title: str
    sizes: str
    test: str
    reference: str
    hub: str = ""


_TRANSFORMERS = "those of Hugging Face Transformers"


def _decoder(title: str, sizes: str, file: str, hub: str, of: str = "") -> Family:
    test = f"tests/recipes/decoders/test_{file}.py::test_logits_and_cache{of}"
    return Family(title, rf"decoders\.{sizes}", test, _TRANSFORMERS, hub)


def _pretrained(title: str, sizes: str, hub: str) -> Family:
    test = "tests/end_to_end/test_pretrained.py::test_the_logits_are_those_of_transformers"
    return Family(title, rf"decoders\.{sizes}", test, _TRANSFORMERS, hub)


_PAX = "tests/recipes/decoders/test_pax_goldens.py::test_logits_are_those_of_pax"
_T5 = "tests/models/test_encoder_decoder_goldens.py::test_logits"
_ENCODERS = "tests/models/test_encoder_goldens.py::test_logits_and_pooled_vectors"
_VIT = "tests/models/test_vision_transformer_goldens.py::test_logits_of_images_that_are_not_square"
FAMILIES = (
    _decoder("GPT-2", r"gpt2_\w+", "gpt2", "gpt2"),
    _decoder("Llama 1", r"llama_\w+", "llama", "llama"),
    _decoder("Llama 2", r"llama2_\w+", "llama", "llama"),
    _decoder("Llama 3, 3.1 and 3.2", r"llama3\d?_\w+", "llama", "llama"),
    _decoder("Mistral", r"mistral_\w+", "mistral", "mistral"),
    _pretrained("Mixtral", r"mixtral_\w+", "mixtral"),
    _decoder("Gemma 1", r"gemma_\w+", "gemma", "gemma"),
    _decoder("Gemma 2", r"gemma2_\w+", "gemma", "gemma2", "_of_2"),
    _decoder("Gemma 3 (language model)", r"gemma3_\w+", "gemma", "gemma3", "_of_3"),
    _decoder("Qwen 2 and 2.5", r"qwen2_\w+", "qwen", "qwen2", "_of_2"),
    _decoder("Qwen 3", r"qwen3_(?!30b)\w+", "qwen", "qwen3", "_of_3"),
    _pretrained("Qwen 3 with experts", r"qwen3_30b\w+", "qwen3_moe"),
    _decoder("OLMo 2", r"olmo2_\w+", "olmo2", "olmo2"),
    Family("Pax base decoder A and GPT-3", r"decoders\.pax_\w*b", _PAX, "those of Paxml 1.4.0"),
    Family(
        "GLaM",
        r"decoders\.glam_\w+",
        "tests/recipes/decoders/test_glam.py::test_logits_are_those_of_the_formulas",
        "the formulas of the paper",
    ),
    Family(
        "Grok 1",
        r"decoders\.grok_1",
        "tests/recipes/decoders/test_grok.py::"
        "test_logits_are_those_of_the_hidden_states_over_the_root_of_the_width",
        "the formula for logits in the published code, and with nothing else,",
    ),
    Family("BERT", r"encoders\.bert_\w+", _ENCODERS, _TRANSFORMERS, "bert"),
    Family("ALBERT", r"encoders\.albert_\w+", _ENCODERS, _TRANSFORMERS, "albert"),
    Family("T5", r"encoders\.t5_(?!1_1|gated)\w+", _T5, _TRANSFORMERS, "t5"),
    Family("T5 1.1 and Flan-T5", r"encoders\.t5_1_1_\w+", _T5, _TRANSFORMERS, "t5_gated"),
    Family("Vision transformer", r"encoders\.vit_\w+\d+", _VIT, _TRANSFORMERS, "vit"),
    Family(
        "ResNet",
        r"vision\.resnet\d+",
        "tests/models/test_resnet.py::test_logits_by_running_statistics",
        "those of PyTorch",
    ),
)


def sizes() -> dict[str, Any]:
    """Return the recipes of published sizes, by `module.function` below luthier.recipes.

    Their docstrings begin with the number of parameters that the publication names.
    """
    from luthier.recipes import decoders, encoders, vision

    found = {}
    for module in (decoders, encoders, vision):
        place = module.__name__.rpartition(".")[2]
        for name, recipe in inspect.getmembers(module, inspect.isfunction):
            summary = (inspect.getdoc(recipe) or "").partition("\n")[0]
            if re.search(r"\d(M| (m|b|tr)illion) parameters", summary):
                found[f"{place}.{name}"] = recipe
    return found


def count(template: Any) -> int:
    """Return the number of parameters that a template describes."""
    import jax
    from flax import nnx

    from luthier import graph

    model = nnx.eval_shape(lambda: graph.build(template)(rngs=nnx.Rngs(0)))
    return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(nnx.state(model, nnx.Param)))


def render() -> str:
    """Return the page."""
    from luthier.checkpoint.foreign import families

    recipes = sizes()
    parts = [START]
    for family in FAMILIES:
        rows = []
        for name, recipe in recipes.items():
            if re.fullmatch(family.sizes, name):
                rows.append((count(recipe()), name))
        hub = ""
        if family.hub:
            types = [f"`{kind}`" for kind in families.named(family.hub).model_types]
            verb = "type is" if len(types) == 1 else "types are"
            hub = f"The hub {verb} {' and '.join(types)}.\n"
        parts.append(
            f"\n## {family.title}\n\n{hub}The logits are compared with {family.reference} "
        )
        parts.append(f"in\n`{family.test}`.\n\n| recipe | parameters |\n|---|---|\n")
        parts += [f"| `{name}` | {number:,} |\n" for number, name in sorted(rows)]
    return "".join(parts)
