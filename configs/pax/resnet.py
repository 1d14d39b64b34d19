"""Pax's ResNet-50 on ImageNet: 25.6 million parameters, 90 epochs.

Paper: Goyal et al. 2017, "Accurate, Large Minibatch SGD: Training ImageNet in 1 Hour",
  arXiv:1706.02677; Paxml, `tasks/vision/params/imagenet_resnets.py`.
Command: luthier train configs.pax.resnet
Hardware: 8 devices; ImageNet as folders of images, one for each class, below `data/imagenet`.
Expected: not measured yet.

Pax published no accuracy, and says that statistics over the whole batch cost about 0.3 percent, as
Wu and Johnson 2021 found (arXiv:2105.07576, section 4). It says that it computes in bfloat16, and
nothing makes it so: here it is float32. Kernels are drawn by their inputs here, and by their
outputs there; images are scaled and shifted here, and cut out at random there.
"""

from __future__ import annotations

import fiddle as fdl

from luthier import checkpoint, data, durations, optim, parallel, program, records, tasks
from luthier.graph import add, set_value, value
from luthier.recipes import vision

EPOCH = 1_281_167 // 512  # steps


def experiment() -> fdl.Config[program.Experiment]:
    """Train a ResNet-50 of 25.6 million parameters on 8 devices.

    Pax: ResNet50Pjit
    """
    folder = value("data/imagenet", name="folder")
    batch = value(512, name="global_batch_size")
    model = vision.resnet50()
    for path in ("block.norm", "block.last_norm"):
        set_value(model, f"{path}.epsilon", 1e-3)
    return fdl.Config(
        program.Experiment,
        name="pax-resnet",
        seed=0,
        model=model,
        task=fdl.Config(tasks.Classification),
        data=_images(add(folder, "/train"), [fdl.Config(data.Flip), fdl.Config(data.Shift, 16)]),
        evaluations={
            "validation": fdl.Config(
                program.Evaluation,
                data=_images(add(folder, "/validation"), []),
                every=fdl.Config(durations.Steps, EPOCH),
                global_batch_size=batch,
            )
        },
        optimizer=fdl.Config(
            optim.nesterov, learning_rate=_schedule(0.2), momentum=0.9, weight_decay=1e-4
        ),
        training=fdl.Config(program.Training, steps=90 * EPOCH, global_batch_size=batch),
        parallelism=fdl.Config(parallel.Parallelism, mesh=fdl.Config(parallel.Mesh, data=8)),
        checkpoints=fdl.Config(
            checkpoint.Checkpoints, every=fdl.Config(durations.Steps, 5000), keep_latest=1000
        ),
        records=fdl.Config(records.Records, console=fdl.Config(records.Console)),
    )


def _schedule(peak: float) -> fdl.Config[optim.Join]:
    """Return a rise over 5 epochs, and a tenth of the rate after 30, 60 and 80."""
    warmup = 5 * EPOCH
    rise = fdl.Config(
        optim.WarmupLinear, peak=peak, warmup_steps=warmup, total_steps=warmup + 1, end=peak
    )
    pieces = fdl.Config(
        optim.Piecewise,
        values=[peak, 0.1 * peak, 0.01 * peak, 0.001 * peak],
        boundaries=[epoch * EPOCH - warmup for epoch in (30, 60, 80)],
    )
    return fdl.Config(optim.Join, schedules=[rise, pieces], boundaries=[warmup])


def _images(directory: object, augmentations: list[object]) -> fdl.Config[data.Classification]:
    return fdl.Config(
        data.Classification,
        source=fdl.Config(data.ImageFolder, directory=directory, height=224, width=224),
        transforms=[fdl.Config(data.Standardize, mean=0.449, std=0.226)],
        augmentations=augmentations,
    )
