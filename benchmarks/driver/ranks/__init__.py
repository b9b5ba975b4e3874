"""The ranks of contenders that are called from Python; benchmarks/worker has those in C++."""
