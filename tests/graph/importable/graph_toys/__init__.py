"""Toy components and experiments for the tests of luthier.graph."""
