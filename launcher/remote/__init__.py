"""Starts ranks on several hosts without MPI: one process per host, over ssh or whatever behaves like it.

That process (`host.py`) runs the ranks of its host as the launcher runs those of a single one, and hands on
what they write and how they end, as frames (`frames.py`) over its standard output. What a job needs to
start, its secret included, comes over standard input. When the connection ends, so do the ranks.
"""
