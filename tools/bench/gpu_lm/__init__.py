"""The sides of `tools/bench_gpu_lm.py`: each is a process that takes steps when it is asked to."""
