from luthier.checkpoint.foreign.families import ALBERT
from luthier.recipes.encoders import albert

SIZES = {"vocab_size": 13, "embed_dim": 4, "dim": 6, "num_heads": 2, "hidden_dim": 10}


def test_there_and_back_is_bit_exact(there_and_back):
    model = albert(**SIZES, num_layers=6, num_groups=2, max_length=5)
    shapes = there_and_back(ALBERT, model, {})
    assert shapes["albert.embeddings.word_embeddings.weight"] == (13, 4)
    assert shapes["albert.encoder.embedding_hidden_mapping_in.weight"] == (6, 4)
    assert shapes["predictions.dense.weight"] == (4, 6)
    groups = [name for name in shapes if "albert_layer_groups.1.albert_layers.0." in name]
    assert len(groups) == 16
    assert not [name for name in shapes if "albert_layer_groups.2." in name]


def test_copies_and_heads_of_other_tasks(resolve):
    found = resolve(ALBERT, albert(**SIZES, num_layers=1), {})
    assert set(found.copies) == {"predictions.decoder.weight", "predictions.decoder.bias"}
    assert ALBERT.is_ignored("sop_classifier.classifier.weight")
