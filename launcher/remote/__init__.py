"""Starts ranks on several hosts without MPI: one process per host, over ssh or a compatible program.

That process (`host.py`) runs the ranks of its host as the launcher does for a single host. It reports their
output and their ends as frames (`frames.py`) on its standard output. What a job needs to start, including
its secret, comes over standard input. When the connection ends, so do the ranks.
"""
