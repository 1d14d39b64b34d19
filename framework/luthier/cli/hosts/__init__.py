"""Training with several processes: the options, the parent of a host's processes, the children."""
