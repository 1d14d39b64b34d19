"""Launching: one run, or the slices of a sweep, on the machines of SLURM, Ray and Kubernetes."""
