"""A classifier in the manner of scenic: ConfigDicts inside of ConfigDicts, steps by arithmetic."""

import ml_collections

NUM_TRAIN_EXAMPLES = 60_000


def get_config(runlocal=""):
    runlocal = bool(runlocal)
    config = ml_collections.ConfigDict()
    config.experiment_name = "mnist_local" if runlocal else "mnist"

    # Model.
    config.model_name = "fully_connected"
    config.model = ml_collections.ConfigDict()
    config.model.hidden_size = ml_collections.FieldReference(16)
    config.model.mlp_dim = config.model.get_ref("hidden_size") * 4
    config.model.dropout_rate = 0.1
    config.model_dtype_str = "bfloat16"

    # Training.
    config.optimizer_configs = ml_collections.ConfigDict()
    config.optimizer_configs.beta2 = 0.98
    config.batch_size = 8 if runlocal else 128
    config.num_training_epochs = 5
    config.rng_seed = 42

    # Learning rate.
    steps_per_epoch = NUM_TRAIN_EXAMPLES // config.batch_size
    total_steps = config.num_training_epochs * steps_per_epoch
    config.lr_configs = ml_collections.ConfigDict()
    config.lr_configs.learning_rate_schedule = "compound"
    config.lr_configs.total_steps = total_steps
    config.lr_configs.warmup_steps = steps_per_epoch
    config.lr_configs.base_learning_rate = 0.1

    config.checkpoint = None
    return config
