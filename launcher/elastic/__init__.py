"""Elastic jobs, whose ranks come and go: `rueda run --max-np`."""
