"""How linear maps multiply: plainly, or with factors of few bits."""

from luthier.layers.products.product import MatrixProduct, Product
from luthier.layers.products.quantized import QuantizedProduct

__all__ = ["MatrixProduct", "Product", "QuantizedProduct"]
