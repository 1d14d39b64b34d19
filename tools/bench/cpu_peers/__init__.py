"""The workload of `tools/bench_cpu_peers.py` in each framework."""
