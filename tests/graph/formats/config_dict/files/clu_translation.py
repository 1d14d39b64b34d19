"""A translation model in the manner of clu and the Flax examples: references and placeholders."""

import ml_collections
from ml_collections import config_dict

RENAMES = {
    "learning_rate": "optimizer.learning_rate.peak",
    "warmup_steps": "optimizer.learning_rate.warmup_steps",
    "num_train_steps": "steps",
    "decay_steps": "optimizer.learning_rate.total_steps",
    "eval_every_steps": "evaluations.held_out.every.count",
    "dataset_name": "data.path",
    "max_target_length": "data.length",
    "max_eval_target_length": "evaluations.held_out.data.length",
    "emb_dim": "model.dim",
    "num_heads": "model.num_heads",
    "mlp_dim": "model.layers[0].hidden",
    "restore_from": "note",
}


def get_config(size: str):
    """Get the default hyperparameter configuration, `size` is base or big."""
    config = ml_collections.ConfigDict()
    config.dataset_name = config_dict.required_placeholder(str)
    config.max_target_length = 256
    config.max_eval_target_length = config.get_ref("max_target_length")

    config.num_train_steps = 500_000
    config.decay_steps = config.get_ref("num_train_steps")
    config.eval_every_steps = config.get_ref("num_train_steps") // 100
    config.learning_rate = 0.0016
    config.warmup_steps = 1000

    config.emb_dim = {"base": 512, "big": 1024}[size]
    config.num_heads = 8
    config.mlp_dim = 4 * config.get_ref("emb_dim")
    config.restore_from = config_dict.placeholder(str)
    config.seed = 0
    return config
