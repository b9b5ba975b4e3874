"""Jobs started once on each node: `rueda run --nodes N` in every pod, or in one Slurm task per node.

The launcher of node 0 waits for the launchers of the other nodes (`gathering.py`), which prove over TCP that they know
the job's secret (`greeting.py`). From then on it treats them like hosts that it reaches over ssh: it exchanges the same
frames (`..remote`), over a connection to each node in place of ssh. Each node's launcher shows the output of its own
ranks, and all launchers end with the same sentence and exit code.
"""
