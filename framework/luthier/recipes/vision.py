"""Residual networks in their published sizes, as templates of a model."""

from __future__ import annotations

import fiddle as fdl

from luthier import layers, models


def resnet(
    num_classes: int, stage_sizes: tuple[int, ...], block: type = layers.BottleneckBlock
) -> fdl.Partial[models.ResNet]:
    """Return a residual network for images of 224 x 224 pixels, with batch normalization.

    Args:
      num_classes: Number of classes.
      stage_sizes: Number of blocks in every stage.
      block: `BasicBlock` or `BottleneckBlock`.

    Returns:
      A template of `models.ResNet`, for `model` of an experiment.

    Source: He et al. 2015, arXiv:1512.03385, table 1, with the stride of version 1.5.
    """
    # The last norm of each block starts at zero, so that a block is the identity at first (Goyal et
    # al. 2017, arXiv:1706.02677, section 5.1).
    norm = fdl.Partial(layers.BatchNorm)
    return fdl.Partial(
        models.ResNet,
        num_classes=num_classes,
        stage_sizes=stage_sizes,
        width=64,
        block=fdl.Partial(
            block,
            norm=norm,
            last_norm=fdl.Partial(layers.BatchNorm, scale=fdl.Config(layers.Zeros)),
        ),
        stem=fdl.Partial(layers.LargeStem, norm=norm),
    )


def resnet18(num_classes: int = 1000) -> fdl.Partial[models.ResNet]:
    """Return ResNet-18: 11.7M parameters with 1000 classes (`num_classes`).

    Returns:
      A template of `models.ResNet`, for `model` of an experiment.
    """
    return resnet(num_classes, (2, 2, 2, 2), layers.BasicBlock)


def resnet34(num_classes: int = 1000) -> fdl.Partial[models.ResNet]:
    """Return ResNet-34: 21.8M parameters with 1000 classes (`num_classes`).

    Returns:
      A template of `models.ResNet`, for `model` of an experiment.
    """
    return resnet(num_classes, (3, 4, 6, 3), layers.BasicBlock)


def resnet50(num_classes: int = 1000) -> fdl.Partial[models.ResNet]:
    """Return ResNet-50: 25.6M parameters with 1000 classes (`num_classes`).

    Returns:
      A template of `models.ResNet`, for `model` of an experiment.

    Example:
      >>> from luthier import planner
      >>> from luthier.recipes import vision
      >>> planner.count_parameters(planner.model_parameters(vision.resnet50())).total
      25557032
    """
    return resnet(num_classes, (3, 4, 6, 3))


def small_images(model: fdl.Partial[models.ResNet]) -> fdl.Partial[models.ResNet]:
    """Return the network for images of few pixels: a stem of 3 x 3 at stride 1.

    Args:
      model: The result of `resnet`; it is changed.

    Returns:
      A template of `models.ResNet`, for `model` of an experiment.
    """
    model.stem = fdl.Partial(layers.SmallStem, norm=model.stem.norm)
    return model


def group_normalized(
    model: fdl.Partial[models.ResNet], num_groups: int = 32
) -> fdl.Partial[models.ResNet]:
    """Return the network with group in place of batch normalization: rows do not see each other.

    Args:
      model: The result of `resnet`; it is changed.
      num_groups: Groups that channels are cut into.

    Returns:
      A template of `models.ResNet`, for `model` of an experiment.

    Source: Wu and He 2018, arXiv:1803.08494, section 4.1.
    """
    norm = fdl.Partial(layers.GroupNorm, num_groups=num_groups)
    model.block.norm = model.stem.norm = norm
    model.block.last_norm = fdl.Partial(
        layers.GroupNorm, num_groups=num_groups, scale=fdl.Config(layers.Zeros)
    )
    return model
