"""What `luthier data` does, one module for each action that is long."""
