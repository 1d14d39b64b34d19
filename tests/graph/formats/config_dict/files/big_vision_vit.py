# ruff: noqa: C408
"""A ViT in the manner of big_vision: nested dicts, and an argument of settings with commas."""

import ml_collections as mlc

RENAMES = {
    "lr": "optimizer.learning_rate.peak",
    "schedule": "optimizer.learning_rate",
    "schedule.decay_type": False,
    "total_steps": ["steps", "optimizer.learning_rate.total_steps"],
    "input": "data",
    "input.batch_size": "evaluations.held_out.batch_size",
    "input.data": False,
    "model_name": False,
    "grad_clip_norm": False,
}


def parse_arg(arg, **settings):
    for item in filter(None, (arg or "").split(",")):
        name, _, value = item.partition("=")
        settings[name] = type(settings[name])(value)
    return mlc.ConfigDict(settings)


def get_config(arg=None):
    arg = parse_arg(arg, dim=64, batch_size=128)
    config = mlc.ConfigDict()
    config.seed = 0
    config.total_steps = 5_000

    config.input = dict(
        data=dict(name="imagenet2012", split="train[:99%]"),
        batch_size=arg.batch_size,
        length=224,
        fields=["image", "labels"],
    )

    config.model_name = "vit"
    config.model = dict(dim=arg.dim, num_heads=8)

    config.lr = 0.001
    config.schedule = dict(warmup_steps=1_000, decay_type="cosine")
    config.optimizer = dict(b1=0.9, b2=0.95)
    config.grad_clip_norm = 1.0
    return config
