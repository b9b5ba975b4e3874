"""The store at which the ranks of a job meet."""
