"""The programs that `tools/gpu_hour.py` runs, one process each."""
