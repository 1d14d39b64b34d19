import dataclasses

import jax
import numpy as np
import pytest

from luthier import graph as graphs
from luthier import program as programs
from luthier.checkpoint import foreign
from luthier.data import Bpe, BpeMerges, Bytes, SentencePiece, Tiktoken, TokenizerJson
from luthier.errors import BadInput, CheckpointError
from luthier.program import export

SMALL = (
    "model.dim=16",
    "model.num_layers=2",
    "model.block.attention.num_heads=2",
    "model.block.attention.num_kv_heads=1",
    "model.block.mlp.hidden_dim=16",
    "data.length=16",
    "training.global_batch_size=8",
    "evaluations={}",
)


@pytest.fixture(scope="module")
def made():
    graph = graphs.apply(graphs.resolve("configs.lm.quickstart"), SMALL)
    program = programs.make(graph, jax.devices()[:1])
    return program, program.init(program.values())


@pytest.mark.full
def test_the_family_is_found_and_the_config_knows_the_data(made, tmp_path):
    exported = export(*made, tmp_path / "out", metadata={"step": "3"})
    assert exported.family == "llama"
    config = foreign.read_config(tmp_path / "out")
    assert config["model_type"] == "llama"
    assert config["max_position_embeddings"] == 16
    assert config["vocab_size"] == 258
    assert config["eos_token_id"] == 257
    assert config["dtype"] == "float32"
    with foreign.Tensors(tmp_path / "out") as tensors:
        assert tensors.metadata["step"] == "3"
        assert tensors.metadata["format"] == "pt"
        assert tensors.described["model.embed_tokens.weight"].shape == (258, 16)
        assert len(tensors.described) == exported.num_tensors == 20


def test_names_of_our_own(made, tmp_path):
    program, leaves = made
    exported = export(program, leaves, tmp_path / "out", family="luthier")
    assert exported.files == ("model.safetensors",)
    state = program.named(leaves)
    with foreign.Tensors(tmp_path / "out") as tensors:
        for name, described in tensors.described.items():
            whole = tuple(slice(0, size) for size in described.shape)
            np.testing.assert_array_equal(tensors.read(name, whole), state[f"parameters/{name}"])


def test_the_tokenizer_goes_along(made, tmp_path):
    (tmp_path / "tokenizer").mkdir()
    (tmp_path / "tokenizer" / "tokenizer.json").write_text("{}")
    exported = export(*made, tmp_path / "out", tokenizer=tmp_path / "tokenizer")
    assert "tokenizer.json" in exported.files
    assert (tmp_path / "out" / "tokenizer.json").is_file()


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda a, b: Bpe(a), {"tokenizer.json": "a"}),
        (lambda a, b: TokenizerJson(a), {"tokenizer.json": "a"}),
        (lambda a, b: SentencePiece(a), {"tokenizer.model": "a"}),
        (lambda a, b: BpeMerges(a, b), {"vocab.json": "a", "merges.txt": "b"}),
        (lambda a, b: Tiktoken(a, "", {}), {"tokenizer.tiktoken": "a"}),
        (lambda a, b: Bytes(), {}),
        (lambda a, b: BpeMerges(a, f"{b}.gone"), {}),
    ],
)
def test_files_of_a_tokenizer_have_the_names_of_their_format(made, tmp_path, make, expected):
    for name in ("a", "b"):
        (tmp_path / name).write_text(name)
    program, leaves = made
    tokenizer = make(str(tmp_path / "a"), str(tmp_path / "b"))
    data = dataclasses.replace(program.experiment.data, tokenizer=tokenizer)
    other = dataclasses.replace(
        program, experiment=dataclasses.replace(program.experiment, data=data)
    )
    exported = export(other, leaves, tmp_path / "out", family="luthier")
    assert exported.files == ("model.safetensors", *expected)
    for name, content in expected.items():
        assert (tmp_path / "out" / name).read_text() == content


def test_what_cannot_be_written_is_refused_before(made, tmp_path):
    with pytest.raises(BadInput, match="the model is not a gpt2"):
        export(*made, tmp_path / "out", family="gpt2")
    with pytest.raises(CheckpointError, match="no family 'lama'"):
        export(*made, tmp_path / "out", family="lama")
    assert not (tmp_path / "out").exists()
