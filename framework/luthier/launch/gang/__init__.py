"""Gangs: how the processes of one find each other, and how those of a sweep are driven."""
