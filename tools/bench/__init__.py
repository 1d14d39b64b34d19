"""What the commands `tools/bench/*.py` share, and the files of what they run."""
