"""What the operands of `luthier diff` name: experiments, runs, trials, records, git revisions."""
