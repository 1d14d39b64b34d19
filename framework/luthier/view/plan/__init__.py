"""Views of plans: on the terminal, and as a page."""
