"""Output of `luthier show`, one module for each kind of answer."""
