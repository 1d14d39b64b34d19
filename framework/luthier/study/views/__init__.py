"""Views of a study: a live table, its trials, the best of them."""
