"""The driver: asks for settings, runs their trials on slices, tells what came of them."""
