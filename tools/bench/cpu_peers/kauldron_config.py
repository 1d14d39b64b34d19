"""Kauldron's configuration file of `tools/bench/peers.py`."""

import os

from kauldron import konfig

with konfig.imports():
    import kauldron_lm
    import optax
    from kauldron import kd


def get_config():
    """Return the trainer; `BENCH_CORPUS` names the bytes."""
    config = kd.train.Trainer()
    config.seed = 0
    config.train_ds = kd.data.py.DataSource(
        data_source=kauldron_lm.Rows(os.environ["BENCH_CORPUS"]),
        shuffle=True,
        batch_size=8,
        num_workers=0,
    )
    config.model = kauldron_lm.LanguageModel(tokens="batch.tokens")
    config.train_losses = {
        "loss": kd.losses.SoftmaxCrossEntropyWithIntLabels(
            logits="preds.logits", labels="batch.targets"
        )
    }
    config.optimizer = optax.chain(
        optax.clip_by_global_norm(1.0),
        optax.adamw(learning_rate=1e-3, b1=0.9, b2=0.99, weight_decay=0.1),
    )
    config.schedules = {}
    config.log_metrics_every = 1
    config.log_summaries_every = 100_000
    config.checkpointer = kd.ckpts.NoopCheckpointer()
    return config
