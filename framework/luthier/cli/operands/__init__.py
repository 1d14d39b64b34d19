"""Operands of `luthier diff`: experiments, runs, trials, records and git revisions."""
