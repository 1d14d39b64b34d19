"""ViT against an independent implementation; tools/goldens/make_encoders.py made the file."""

import jax
import numpy as np

from luthier.checkpoint.foreign import families
from luthier.recipes import encoders


def test_logits_of_images_that_are_not_square(foreign_golden):
    recipe = encoders.vit(
        dim=32,
        num_layers=2,
        num_heads=4,
        hidden_dim=48,
        image_size=(8, 12),
        patch_size=(4, 4),
        num_classes=7,
    )
    recipe.norm.epsilon = 1e-12
    model, arrays, config = foreign_golden("vit", recipe, families.named("vit"))
    assert config["image_size"] == [8, 12]
    images = arrays["pixel_values"].transpose(0, 2, 3, 1)
    logits = jax.jit(lambda model, images: model(images))(model, images)
    np.testing.assert_allclose(logits, arrays["logits"], rtol=1e-5, atol=1e-5)
