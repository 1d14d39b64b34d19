"""Studies, each a function that returns a graph."""
