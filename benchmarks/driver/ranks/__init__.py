"""Ranks of contenders that are called from Python. Those in C++ are in benchmarks/worker."""
