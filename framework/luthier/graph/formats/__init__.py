"""Configs of other systems (ml_collections, gin, Hydra, konfig): read, applied and written."""
