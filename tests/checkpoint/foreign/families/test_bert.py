from luthier.checkpoint.foreign.families import BERT
from luthier.recipes.encoders import bert

MODEL = bert(vocab_size=13, dim=6, num_layers=2, num_heads=2, hidden_dim=10, max_length=5)


def test_there_and_back_is_bit_exact(there_and_back):
    MODEL.embedding.tokens.pad_to_multiple = 8
    shapes = there_and_back(BERT, MODEL, {"vocab": 13})
    assert shapes["bert.embeddings.word_embeddings.weight"] == (13, 6)
    assert shapes["bert.encoder.layer.1.attention.self.query.weight"] == (6, 6)
    assert shapes["bert.encoder.layer.0.intermediate.dense.weight"] == (10, 6)
    assert shapes["cls.predictions.bias"] == (13,)
    assert len(shapes) == 5 + 2 * 16 + 2 + 5


def test_copies_and_heads_of_other_tasks(resolve):
    found = resolve(BERT, MODEL, {})
    assert found.copies == {
        "cls.predictions.decoder.weight": "bert.embeddings.word_embeddings.weight",
        "cls.predictions.decoder.bias": "cls.predictions.bias",
    }
    for name in ("bert.embeddings.position_ids", "cls.seq_relationship.weight"):
        assert BERT.is_ignored(name)
    assert not BERT.is_ignored("bert.pooler.dense.weight")


def test_parts_that_a_model_lacks_are_not_asked_for(resolve):
    bare = bert(vocab_size=13, dim=6, num_layers=1, num_heads=2, hidden_dim=10, max_length=5)
    bare.head = bare.pooler = None
    assert all(name.startswith("bert.e") for name in resolve(BERT, bare, {}).shapes)
