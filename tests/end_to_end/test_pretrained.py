"""A Hugging Face folder is shown, generates, is evaluated, trained and exported by one command."""

import json
from pathlib import Path

import jax
import numpy as np
import pytest

import luthier
from luthier import cli
from luthier.cli import main
from luthier.errors import BadInput
from luthier.recipes import decoders, foreign
from tests.hub_folders import read_golden, write_folder

T5_BY_TRANSFORMERS_5 = {"tie_word_embeddings": True, "scale_decoder_outputs": False}


def _case(name):
    """Return settings, tensors, inputs and outputs of a published kind of model."""
    config, tensors, arrays = read_golden(name.partition("-")[0])
    if name == "bert-mlm":  # as BertForMaskedLM is saved
        tensors = {k: v for k, v in tensors.items() if "pooler" not in k}
    if name == "bert-bare":  # as BertModel is saved
        config["architectures"] = ["BertModel"]
        tensors = {k.removeprefix("bert."): v for k, v in tensors.items() if k.startswith("bert.")}
    if name == "t5_gated":
        config |= T5_BY_TRANSFORMERS_5
    if name == "gemma3-images":  # as the hub has those of 4B and more
        config = {"model_type": "gemma3", "text_config": config, "vision_config": {}}
        tensors = {f"language_model.{k}": v for k, v in tensors.items()}
        tensors["vision_tower.vision_model.post_layernorm.bias"] = np.zeros(3, np.float32)
    return config, tensors, arrays


DECODERS = ("gemma3", "gemma3-images", "llama", "mixtral", "qwen3", "qwen3_moe")
ENCODERS = ("bert", "bert-mlm")
CASES = (*DECODERS, *ENCODERS, "t5_gated")


@pytest.fixture
def folder_of(tmp_path, monkeypatch):
    """Return a function that writes the folder of a case, beside the working directory."""
    monkeypatch.chdir(tmp_path)

    def make(name, **options):
        config, tensors, arrays = _case(name)
        return write_folder(tmp_path / name, config, tensors, **options), arrays

    return make


def _logits(model, arrays):
    """Return the logits of a golden's inputs."""
    if "decoder_input_ids" in arrays:
        source = model.encode(arrays["input_ids"], segments_BL=arrays["attention_mask"])
        return model.logits(model.decode_hidden(arrays["decoder_input_ids"], source))
    if "input_ids" in arrays:
        described = {"segments_BL": arrays["attention_mask"], "types_BL": arrays["token_type_ids"]}
        return model(arrays["input_ids"], **described)
    return model(arrays["inputs"])


@pytest.mark.parametrize("name", CASES)
def test_the_logits_are_those_of_transformers(name, folder_of):
    folder, arrays = folder_of(name)
    model, graph, tokenizer = luthier.models.load(folder)
    with jax.default_matmul_precision("highest"):
        logits = np.asarray(jax.jit(_logits)(model, arrays))
    real = arrays.get("attention_mask", np.ones(logits.shape[:2])) != 0
    real = real if real.shape == logits.shape[:2] else np.ones(logits.shape[:2], bool)
    np.testing.assert_allclose(logits[real], arrays["logits"][real], rtol=1e-5, atol=1e-5)
    assert graph.vocab_size == 61
    assert tokenizer.vocab_size <= 61


def test_a_bare_encoder_has_its_own_parts_only(folder_of):
    folder, arrays = folder_of("bert-bare")
    model = luthier.models.load(folder).model
    assert model.head is None
    mask = arrays["attention_mask"]
    hidden = model.hidden(arrays["input_ids"], segments_BL=mask, types_BL=arrays["token_type_ids"])
    pooled = model.pooled(hidden, segments_BL=mask)
    np.testing.assert_allclose(pooled, arrays["pooled"], rtol=1e-5, atol=1e-5)


TEXT = f"luthier.data.Documents({[chr(97 + i) * 20 for i in range(20)]})"
SMALL = (
    "training.steps=2",
    "training.global_batch_size=8",
    "optimizer.learning_rate.warmup_steps=1",
    "records.wandb=None",
)


def _text_overrides(name):
    """Return overrides by which training reads a few texts, or pairs, of the folder's letters."""
    if name.startswith("t5"):
        return ("data.source.count=100", "evaluations={}")
    return (f"data.source:={TEXT}", "data.length=8", "evaluations={}")


@pytest.mark.full
@pytest.mark.parametrize("name", CASES)
def test_one_command_each(name, folder_of, capsys, tmp_path):
    folder, arrays = folder_of(name)
    place = f"hf:{folder.name}"
    assert main(["show", place, "restore", "--json"]) == 0
    assert str(folder) in capsys.readouterr().out
    generated = main(["generate", place, "--prompt", "to be", "--max-new-tokens", "4"])
    printed = capsys.readouterr()
    if name in ENCODERS:
        assert generated == 2
        assert "cannot generate: Encoder is not a language model" in printed.err
    else:
        assert generated == 0
        assert printed.out.startswith("" if name.startswith("t5") else "to be")
    lora = ["fiddler:lora(rank=2)", *_text_overrides(name), *SMALL]
    assert main(["train", place, *lora]) == 0
    capsys.readouterr()
    assert main(["export", "last", "--merge", "--output", "tuned"]) == 0
    assert main(["export", place, "--output", "again"]) == 0
    capsys.readouterr()
    # Without the vision model of Gemma 3, which the decoder alone has no use for.
    assert "text_config" not in json.loads((tmp_path / "again" / "config.json").read_text())
    # The folder that an export of the folder makes has the same weights and logits.
    first, second = (luthier.models.load(tmp_path / one).model for one in (name, "again"))
    same = np.asarray(_logits(first, arrays)) == np.asarray(_logits(second, arrays))
    assert same.all()
    tuned = luthier.models.load(tmp_path / "tuned").model
    assert not (np.asarray(_logits(tuned, arrays)) == np.asarray(_logits(first, arrays))).all()


@pytest.mark.full
def test_a_folder_is_evaluated(folder_of, capsys):
    folder, _ = folder_of("llama")
    words = [f"evaluations.held_out.data.source:={TEXT}", "evaluations.held_out.data.length=8"]
    assert main(["evaluate", f"hf:{folder}", *words, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["evaluations"]["held_out"]
    assert 2 < found["nats_per_token"] < 8


@pytest.mark.full
def test_a_run_resumes_without_the_weights(folder_of, capsys):
    folder, _ = folder_of("llama")
    words = [f"hf:{folder.name}", *_text_overrides("llama"), *SMALL]
    assert main(["train", *words, "training.stop:=luthier.durations.Steps(1)"]) == 0
    (folder / "model.safetensors").unlink()
    assert main(["train", "--run", "last", "training.stop=None", "--extend"]) == 0
    assert "2" in capsys.readouterr().out


@pytest.mark.full
def test_tokens_are_continued_without_a_tokenizer(folder_of, capsys):
    folder, arrays = folder_of("llama", tokenizer=False)
    row = arrays["inputs"][0, :5].tolist()
    ids = ",".join(map(str, row))
    words = ["generate", f"hf:{folder}", "--max-new-tokens", "3", "--temperature", "0"]
    assert main([*words, "--tokens", ids]) == 0
    out = capsys.readouterr().out.strip()
    expected = luthier.models.generate(
        luthier.models.load(folder).model, [row], max_new_tokens=3, temperature=0.0
    )[0]
    assert out == ",".join(map(str, row + expected))
    assert main([*words, "--prompt", "to be"]) == 2
    assert "has no tokenizer" in capsys.readouterr().err


@pytest.mark.full
@pytest.mark.parametrize("tokenizer", [False, True])
def test_training_on_random_tokens_is_noted_in_the_header(tokenizer, folder_of, capsys):
    folder, _ = folder_of("llama", tokenizer=tokenizer)
    text = _text_overrides("llama") if tokenizer else ("evaluations={}",)
    assert main(["train", f"hf:{folder.name}", *text, *SMALL]) == 0
    out = capsys.readouterr().out
    assert ("restored weights train on random tokens" in out) is not tokenizer
    if not tokenizer:
        words = ["model.vocab_size=258", 'fiddler:text("notes.txt", tokenizer=Bytes())']
        Path("notes.txt").write_text("to be or not to be\n" * 40)
        assert main(["evaluate", f"hf:{folder.name}"]) == 0
        assert "held_out has random tokens, since hf:llama has no tokenizer" in (
            capsys.readouterr().err
        )
        assert main(["show", f"hf:{folder.name}", *words, "data", "--json"]) == 0
        shown = capsys.readouterr().out
        assert "notes.txt" in shown
        assert "luthier.data.Bytes" in shown


def test_an_unknown_architecture_is_one_line_that_lists_the_known_ones(folder_of, capsys):
    folder, _ = folder_of("llama")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"model_type": "mamba"}))
    assert main(["show", f"hf:{folder}"]) == 2
    lines = capsys.readouterr().err.strip().splitlines()
    assert len(lines) == 1
    assert "model_type 'mamba'" in lines[0]
    assert all(name in lines[0] for name in ("bert", "gemma3", "llama", "mixtral", "qwen3_moe"))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["show", "hf:nowhere"], "nowhere is not a folder"),
        (["show", "hf:"], "hf: names no folder"),
        (["generate", "hf:llama", "--step", "3"], "--step needs a run"),
        (["export", "hf:llama"], "name a folder with --output"),
        (["generate", "hf:llama", "--tokens", "1,x"], "'x' is not a whole number"),
    ],
)
def test_mistakes_are_one_line(words, message, folder_of, capsys):
    folder_of("llama")
    assert main(words) == 2
    lines = capsys.readouterr().err.strip().splitlines()
    assert len(lines) == 1
    assert message in lines[0]


@pytest.mark.full
def test_a_new_head_is_reported_and_not_exported(folder_of, capsys):
    folder, _ = folder_of("bert-bare")
    words = [f"evaluations.held_out.data.source:={TEXT}", "evaluations.held_out.data.length=8"]
    assert main(["evaluate", f"hf:{folder}", *words]) == 0
    printed = capsys.readouterr()
    assert "head.bias" in printed.err
    assert "and initialized" in printed.err
    assert main(["export", f"hf:{folder}", "--output", "again"]) == 2
    assert "train them first" in capsys.readouterr().err


def test_an_encoder_decoder_without_a_tokenizer_is_refused_where_bytes_do_not_fit(
    folder_of, capsys
):
    folder, _ = folder_of("t5_gated", tokenizer=False)
    assert main(["show", f"hf:{folder}"]) == 2
    assert "has no tokenizer, and bytes do not fit" in capsys.readouterr().err


def test_a_part_that_the_files_lack_names_its_setting(folder_of):
    folder, _ = folder_of("bert-mlm")
    with pytest.raises(BadInput, match=r"set model\.pooler=None"):
        luthier.models.load(folder, ["pooler:=luthier.layers.Pooler()"])


def test_the_experiment_of_a_folder_can_be_written_as_source(folder_of):
    folder, _ = folder_of("llama")
    text = cli.source_of(f"hf:{folder}")
    names = {}
    exec(compile(text, "source", "exec"), names)
    graph = luthier.graph.resolve(f"hf:{folder}")
    assert luthier.graph.fingerprint(names["experiment"]()) == luthier.graph.fingerprint(graph)
    assert f"hf:{folder}" in text.splitlines()[0]


def test_defaults_of_gemma_3_with_images_may_be_left_out():
    inside = {"hidden_size": 2560, "num_hidden_layers": 34, "sliding_window": 1024}
    inside |= {"intermediate_size": 10240, "rope_scaling": {"factor": 8.0, "rope_type": "linear"}}
    config = {"model_type": "gemma3", "vision_config": {"hidden_size": 1152}}
    model = foreign.model_of(config | {"text_config": inside | {"model_type": "gemma3_text"}})
    found, expected = foreign.essence(model), foreign.essence(decoders.gemma3_4b())
    assert foreign.differences(found, expected) == []
