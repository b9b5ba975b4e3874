"""`rueda bench latency`: how long single calls take in ordinary programs, and how much that varies."""
