"""Jobs whose ranks come and go: `rueda run --max-np`."""
