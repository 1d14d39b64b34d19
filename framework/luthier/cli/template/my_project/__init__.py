"""Your own parts: plain classes, which experiments in configs/ put into their graphs."""
