"""The workload of `tools/bench/peers.py` in each framework."""
