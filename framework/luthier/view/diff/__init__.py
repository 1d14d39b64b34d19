"""Views of what differs: in the terminal, and as pages."""
