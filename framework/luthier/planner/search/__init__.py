"""Layouts that fit: an analytic model of memory and time, and a search by it."""
