"""A lab of hosts on this machine: network namespaces around a switch, each with its own hostname.

As a fixture: `with Lab(2) as lab`. As a command: `python -m tests.net.lab up`. See lab.py.
"""

from .lab import Lab
from .links import Counters, rate_in_bits
from .namespaces import sweep
from .tools import Unavailable

__all__ = ["Counters", "Lab", "Unavailable", "rate_in_bits", "sweep"]
