"""Sweeps: a study edits paths of an experiment's graph and drives trials over slices of devices."""
