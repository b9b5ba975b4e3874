"""Turns off segmentation and checksum offloads: `python offload.py eth0` in a host.

Does what `ethtool -K eth0 tso off gso off gro off tx off` does; ethtool is not installed
everywhere.
"""

import array
import fcntl
import socket
import struct
import sys

_SIOCETHTOOL = 0x8946
_SET = {"tso": 0x1F, "gso": 0x24, "gro": 0x2C, "tx": 0x17}


def turn_off(interface: str) -> None:
    """Turns offloads off for one interface of this network namespace."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        for command in _SET.values():
            value = array.array("B", struct.pack("II", command, 0))
            request = struct.pack("16sP", interface.encode(), value.buffer_info()[0])
            fcntl.ioctl(control, _SIOCETHTOOL, request)


if __name__ == "__main__":
    for name in sys.argv[1:]:
        turn_off(name)
