"""SLURM: batch scripts that a person can read and run again, and its queue."""
