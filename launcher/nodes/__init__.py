"""Jobs that are started once on each node: `rueda run --nodes N` in every pod, or by one task of Slurm per node.

The launcher of node 0 waits for those of the others (`gathering.py`), which prove over TCP that they know the job's
secret (`greeting.py`). From then on it is to them what it is to hosts that it reaches over ssh: the same frames
(`..remote`), with a connection to each node in the place of ssh. A node's ranks write where that node's launcher
writes, and all launchers end with the same sentence and exit code.
"""
