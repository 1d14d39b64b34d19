"""Views of differences, in the terminal and as pages."""
