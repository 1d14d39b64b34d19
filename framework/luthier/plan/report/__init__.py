"""Reports of plans: their parts, and how they are built."""
