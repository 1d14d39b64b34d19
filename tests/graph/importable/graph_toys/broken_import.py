"""Imports what is not there."""

import graph_toys.not_there  # noqa: F401
