"""Commands that work on what a run recorded."""
