"""Lanes: several trials in one program on one slice."""
