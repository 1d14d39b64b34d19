"""Changing a graph in place: copies, sets and where each value came from."""
