"""Attacks the listeners of a running job and captures what its ranks send each other.

    python attack.py capture FILE       writes the hellos that pass this host's eth0 until ended
    python attack.py strike ORDER.json  carries out the order and prints the result as JSON

An order has `targets` (addresses such as "unix:name" or "tcp:host:port"), `kind`, `count`, `rate`
(connections per second; 0 for no limit) and, for replays, `hellos` (a capture file). Like an
attacker, it uses no code of Rueda.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import itertools
import json
import os
import random
import signal
import socket
import struct
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

PROTOCOLS = (b"ruedactl", b"ruedatcp", b"ruedamem")
HELLO_BYTES = 56
FRAME_HEADER = struct.Struct("=2I")
WELCOME = 3


# --- What the ranks send each other


def _payload(packet: bytes) -> bytes:
    """Returns the TCP payload of an Ethernet frame with IPv4; nothing for other frames."""
    if packet[12:14] != b"\x08\x00" or packet[23] != socket.IPPROTO_TCP:
        return b""
    ip = 14
    tcp = ip + (packet[ip] & 15) * 4
    end = ip + struct.unpack_from("!H", packet, ip + 2)[0] or len(packet)
    return packet[tcp + (packet[tcp + 12] >> 4) * 4 : end]


def capture(file: Path) -> None:
    """Writes one line per hello: all bytes sent with it, in hexadecimal."""
    everything = socket.htons(3)
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, everything) as tap, file.open("w") as out:
        tap.bind(("eth0", 0))
        print("captures", flush=True)
        while True:
            payload = _payload(tap.recv(1 << 18))
            if payload.startswith(PROTOCOLS) and len(payload) >= HELLO_BYTES:
                out.write(payload.hex() + "\n")
                out.flush()


# --- The attacks


def _connect(address: str) -> socket.socket | None:
    """Returns a connection, or None if it is refused or the listener's queue is full."""
    kind, rest = address.split(":", 1)
    if kind == "unix":
        connection = socket.socket(socket.AF_UNIX)
        target: str | tuple[str, int] = "\0" + rest
    else:
        host, port = rest.rsplit(":", 1)
        connection = socket.socket(socket.AF_INET)
        target = (host, int(port))
    connection.settimeout(2)
    try:
        connection.connect(target)
    except OSError:
        connection.close()
        return None
    return connection


def _answer(connection: socket.socket, timeout: float) -> bytes:
    connection.settimeout(timeout)
    try:
        return connection.recv(4096)
    except OSError:
        return b""


def _is_welcome(answer: bytes) -> bool:
    return len(answer) >= FRAME_HEADER.size and FRAME_HEADER.unpack_from(answer)[1] == WELCOME


def _garbage(chance: random.Random) -> bytes:
    length = chance.choice([0, 1, 7, 8, 56, 200, 5000])
    begin = chance.choice([b"", *PROTOCOLS])  # some pass the first check
    return begin + chance.randbytes(length)


def wrong_hello(protocol: bytes, rank: int, peer: int) -> bytes:
    """Returns the hello of a rank whose world has another secret."""
    parts = ["hello", str(rank), str(peer)]
    text = "".join(f"{len(part)}:{part}" for part in parts).encode()
    proof = hmac.new(b"another job's secret", text, hashlib.sha256).digest()
    return protocol + struct.pack("=2I", 2, rank) + proof


def _words(order: dict[str, object]) -> Iterator[bytes]:
    """Yields what each connection sends, without end."""
    chance = random.Random(7)
    kind = order["kind"]
    if kind == "half-open":
        yield from itertools.repeat(b"")
    elif kind == "garbage":
        while True:
            yield _garbage(chance)
    elif kind == "wrong secret":
        pairs = [(a, b) for a in range(4) for b in range(4) if a != b]
        for protocol, (rank, peer) in itertools.cycle(itertools.product(PROTOCOLS, pairs)):
            yield wrong_hello(protocol, rank, peer)
    else:
        lines = Path(str(order["hellos"])).read_text().split()
        for line in itertools.cycle(lines):
            yield bytes.fromhex(line)


def strike(order: dict[str, object]) -> dict[str, int]:
    """Connects `count` times and counts how far the connections get.

    All connections but those that send garbage stay open until the end. `confirmed` counts the
    welcomed connections on which 64 more bytes, which prove nothing, were accepted.
    """
    targets = itertools.cycle(list(order["targets"]))  # type: ignore[call-overload]
    count, rate = int(str(order["count"])), float(str(order["rate"]))
    holds = order["kind"] != "garbage"
    held: list[socket.socket] = []
    result = {"tried": count, "connected": 0, "welcomed": 0, "confirmed": 0}
    begin = time.monotonic()
    for number, words in zip(range(count), _words(order), strict=False):
        if rate > 0:
            time.sleep(max(0.0, begin + number / rate - time.monotonic()))
        connection = _connect(next(targets))
        if connection is None:
            continue
        result["connected"] += 1
        with contextlib.suppress(OSError):
            connection.sendall(words)
        if holds:
            held.append(connection)
        else:
            connection.close()
    time.sleep(0.3)
    for connection in held:
        if order["kind"] != "half-open":
            answer = _answer(connection, 0.001)
            welcomed = _is_welcome(answer)
            result["welcomed"] += welcomed
            result["confirmed"] += welcomed and _is_believed(connection)
        connection.close()
    return result


def _is_believed(connection: socket.socket) -> bool:
    """Whether an answer without a proof opens the stream."""
    message = 1
    try:
        connection.sendall(FRAME_HEADER.pack(64, message) + bytes(64))
    except OSError:
        return False
    return bool(_answer(connection, 0.2))


# --- The listeners of a process


def listeners() -> list[str]:
    """Returns the addresses at which this process listens, as its host lists them."""
    inodes = set()
    for name in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{name}")
        except OSError:
            continue
        if target.startswith("socket:["):
            inodes.add(target[8:-1])
    found = []
    for line in Path("/proc/self/net/unix").read_text().splitlines()[1:]:
        fields = line.split()
        is_listening = fields[3] == "00010000"
        if is_listening and fields[6] in inodes and len(fields) > 7 and fields[7].startswith("@"):
            found.append("unix:" + fields[7][1:])
    for line in Path("/proc/self/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        if fields[3] == "0A" and fields[9] in inodes:
            host, port = fields[1].split(":")
            address = socket.inet_ntoa(struct.pack("=I", int(host, 16)))
            found.append(f"tcp:{address}:{int(port, 16)}")
    return found


def main() -> None:
    acts: dict[str, Callable[[Path], object]] = {
        "capture": capture,
        "strike": lambda file: print(json.dumps(strike(json.loads(file.read_text())))),
    }
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    acts[sys.argv[1]](Path(sys.argv[2]))


if __name__ == "__main__":
    main()
