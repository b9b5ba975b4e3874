"""PCCL's master, which all peers of a job connect to: master.py ADDRESS:PORT. Writes "ready" once it listens."""

import os
import signal
import sys

os.environ.setdefault("PCCL_LOG_LEVEL", "FATAL")  # nobody reads what it writes later
from pccl import MasterNode

master = MasterNode(listen_address=sys.argv[1])
master.run()
print("ready", flush=True)
while True:  # until it is killed
    signal.pause()
