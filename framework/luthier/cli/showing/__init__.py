"""What `luthier show` prints, one module for each kind of answer."""
