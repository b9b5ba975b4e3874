"""`rueda bench latency`: the latency of single calls in ordinary programs, and how much it varies."""
