"""Graphs as read-only documents: of a live graph, or of a record without importing anything."""
