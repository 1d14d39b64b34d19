"""Views of comparisons, in the terminal and as pages."""
