"""What the commands `tools/bench_*.py` share, and the files of what they run."""
