"""Compiled steps: what the compiler makes of a program, read from what it prints."""
