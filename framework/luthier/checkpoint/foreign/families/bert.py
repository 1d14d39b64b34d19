"""BERT: encoders with a head for masked tokens, and what ALBERT has in common with them."""

from __future__ import annotations

from luthier.checkpoint.foreign.family import Family, Tensor, tensor

HEADS = "(heads head_dim) embed -> embed heads head_dim"
BIAS = "(heads head_dim) -> heads head_dim"
OUTPUT = "embed (heads head_dim) -> heads head_dim embed"
MATRIX = "outputs inputs -> inputs outputs"


def copy(foreign: str, of: str) -> Tensor:
    """Return a foreign tensor that files may hold a second time under the name `foreign`.

    Args:
      foreign: Its second name.
      of: The tensor that it repeats.
    """
    return Tensor(foreign, (), copy_of=of)


def dense(foreign: str, ours: str) -> tuple[Tensor, ...]:
    """Return kernel and bias of a linear map between two single dimensions."""
    return (
        tensor(f"{foreign}.weight", f"{ours}.kernel", MATRIX),
        tensor(f"{foreign}.bias", f"{ours}.bias", "outputs"),
    )


def norm(foreign: str, ours: str) -> tuple[Tensor, ...]:
    """Return scale and bias of a layer norm."""
    return (
        tensor(f"{foreign}.weight", f"{ours}.scale", "embed"),
        tensor(f"{foreign}.bias", f"{ours}.bias", "embed"),
    )


def attention(query: str, key: str, value: str, output: str, ours: str) -> tuple[Tensor, ...]:
    """Return the projections of attention, given their names there and that of ours."""
    found = []
    for foreign, name in ((query, "query"), (key, "key"), (value, "value")):
        found.append(tensor(f"{foreign}.weight", f"{ours}.{name}.kernel", HEADS))
        found.append(tensor(f"{foreign}.bias", f"{ours}.{name}.bias", BIAS))
    found.append(tensor(f"{output}.weight", f"{ours}.output.kernel", OUTPUT))
    found.append(tensor(f"{output}.bias", f"{ours}.output.bias", "embed"))
    return tuple(found)


def embeddings(foreign: str, ours: str) -> tuple[Tensor, ...]:
    """Return the embeddings of tokens, positions and types, and their norm."""
    tokens = f"{ours}.tokens"
    return (
        tensor(f"{foreign}.word_embeddings.weight", f"{tokens}.table", "vocab embed"),
        tensor(f"{foreign}.position_embeddings.weight", f"{tokens}.position.table", "length embed"),
        tensor(f"{foreign}.token_type_embeddings.weight", f"{ours}.types", "types embed"),
        *norm(f"{foreign}.LayerNorm", f"{ours}.norm"),
    )


_LAYER = "bert.encoder.layer.{layer}"
_OURS = "blocks.{layer}"
_SELF = f"{_LAYER}.attention.self"

BERT = Family(
    name="bert",
    model_types=("bert",),
    architecture="BertForMaskedLM",
    is_tied=True,
    prefix="bert.",
    # Numbers that are computed, and heads of other tasks: next-sentence prediction, classification,
    # answers in a text.
    ignored=(
        r"\.position_ids$",
        r"^position_ids$",
        r"^cls\.seq_relationship\.",
        r"^(classifier|qa_outputs)\.",
    ),
    tensors=(
        *embeddings("bert.embeddings", "embedding"),
        *attention(
            f"{_SELF}.query",
            f"{_SELF}.key",
            f"{_SELF}.value",
            f"{_LAYER}.attention.output.dense",
            f"{_OURS}.attention",
        ),
        *norm(f"{_LAYER}.attention.output.LayerNorm", f"{_OURS}.attention_norm"),
        *dense(f"{_LAYER}.intermediate.dense", f"{_OURS}.mlp.up"),
        *dense(f"{_LAYER}.output.dense", f"{_OURS}.mlp.down"),
        *norm(f"{_LAYER}.output.LayerNorm", f"{_OURS}.mlp_norm"),
        *dense("bert.pooler.dense", "pooler.transform"),
        *dense("cls.predictions.transform.dense", "head.transform"),
        *norm("cls.predictions.transform.LayerNorm", "head.norm"),
        tensor("cls.predictions.bias", "head.bias", "vocab"),
        # The decoder shares the embedding's table and the bias above; files hold both names or one.
        copy("cls.predictions.decoder.weight", "bert.embeddings.word_embeddings.weight"),
        copy("cls.predictions.decoder.bias", "cls.predictions.bias"),
    ),
)
