"""Controls the links of a lab: their rates, packet loss, and cuts.

A link is a veth pair: `ethN` in the host, and a bridge port in the switch's namespace. A host's
outgoing traffic is shaped at the host's end, its incoming traffic at the switch's end.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from .tools import Unavailable, find, run, try_to

_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9}
# A GSO packet has up to 64 KiB; a packet larger than the burst is dropped.
_MIN_BURST = 256 << 10
# Length of a link's queue, in seconds at its rate.
_QUEUE = 0.05
# States of a bridge port.
_DISABLED, _FORWARDING = "0", "3"


def rate_in_bits(text: str) -> int:
    """Converts tc's "1gbit", "31mbit" or "500kbit" to bits per second."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([kmg]?)bit", text.lower())
    if match is None or float(match[1]) <= 0:
        raise ValueError(f"'{text}' is no rate: write 1gbit or 31mbit, say")
    return int(float(match[1]) * _UNITS[match[2]])


@dataclass(frozen=True)
class Counters:
    """The kernel's counters of an interface."""

    sent_bytes: int
    received_bytes: int
    sent_packets: int
    received_packets: int


@dataclass(frozen=True)
class End:
    """One of the two interfaces of a link."""

    namespace: str
    interface: str

    def tc(self, *line: str) -> None:
        run("tc", "-n", self.namespace, *line)

    def link(self, *line: str) -> None:
        run("ip", "-n", self.namespace, "link", "set", "dev", self.interface, *line)

    def limit(self, rate: str) -> None:
        """Limits what leaves here to `rate`."""
        burst, queue = _burst(rate), _queue(rate)
        self.unlimited()
        self.tc(
            "qdisc", "add", "dev", self.interface, "root", "handle", "1:",
            "tbf", "rate", rate, "burst", str(burst), "limit", str(queue + burst),
        )  # fmt: skip

    def cap_flows(self, rates: Sequence[str], port: str, rate: str | None) -> None:
        """Sorts flows into classes by the low bits of their TCP port; no class exceeds its rate."""
        count = len(rates)
        if count < 2 or count & (count - 1):
            raise ValueError(f"{count} classes: their number must be a power of 2")
        total = rate or f"{sum(map(rate_in_bits, rates))}bit"
        on = ("dev", self.interface)
        self.unlimited()
        self.tc("qdisc", "add", *on, "root", "handle", "1:", "htb", "default", "2")
        self._htb_class("1:", "1:1", total)
        self._htb_class("1:1", "1:2", total)  # everything but TCP
        for number, cap in enumerate(rates):
            name = f"1:{0x10 + number:x}"
            self._htb_class("1:1", name, cap)
            for priority, (protocol, match) in enumerate((("ip", "ip"), ("ipv6", "ip6")), 1):
                self.tc(
                    "filter", "add", *on, "parent", "1:", "protocol", protocol,
                    "prio", str(priority), "u32", "match", match, "protocol", "6", "0xff",
                    "match", match, port, str(number), hex(count - 1), "flowid", name,
                )  # fmt: skip

    def drop_to(self, addresses: Sequence[str], rate: str) -> None:
        """Drops what leaves here for these IPv4 addresses; the rest leaves at `rate`."""
        on = ("dev", self.interface)
        self.unlimited()
        self.tc("qdisc", "add", *on, "root", "handle", "1:", "htb", "default", "2")
        self._htb_class("1:", "1:2", rate)
        self._htb_class("1:", "1:3", rate)
        # A queue into which no packet fits.
        self.tc("qdisc", "add", *on, "parent", "1:3", "handle", "30:", "bfifo", "limit", "1")
        for address in addresses:
            self.tc(
                "filter", "add", *on, "parent", "1:", "protocol", "ip", "prio", "1", "u32",
                "match", "ip", "dst", f"{address}/32", "flowid", "1:3",
            )  # fmt: skip

    def _htb_class(self, parent: str, name: str, rate: str) -> None:
        burst = str(_burst(rate))
        self.tc(
            "class", "add", "dev", self.interface, "parent", parent, "classid", name,
            "htb", "rate", rate, "ceil", rate, "burst", burst, "cburst", burst,
        )  # fmt: skip

    def unlimited(self) -> None:
        """Undoes limit(), cap_flows() and drop_to()."""
        try_to(["tc", "-n", self.namespace, "qdisc", "delete", "dev", self.interface, "root"])


def _burst(rate: str) -> int:
    return max(_MIN_BURST, rate_in_bits(rate) // 8 // 1000)


def _queue(rate: str) -> int:
    return max(_MIN_BURST, int(rate_in_bits(rate) / 8 * _QUEUE))


@dataclass(frozen=True)
class Link:
    """One link of one host."""

    inner: End  # the host's interface
    outer: End  # the switch's end
    port: End  # the switch's port: its end, or the delay line behind it

    def shape(self, rate: str) -> None:
        """Limits both directions to `rate`, e.g. "1gbit"."""
        self.inner.limit(rate)
        self.outer.limit(rate)

    def cut(self) -> None:
        """Takes the host's interface down: senders get an error at once."""
        self.inner.link("down")

    def mend(self) -> None:
        """Undoes cut()."""
        self.inner.link("up")

    def silence(self) -> None:
        """Drops every packet in both directions silently: only a timeout reveals it."""
        self._set_port(_DISABLED)

    def end_silence(self) -> None:
        """Undoes silence()."""
        self._set_port(_FORWARDING)

    def _set_port(self, state: str) -> None:
        on = ["-n", self.port.namespace, "link", "set", "dev", self.port.interface]
        run("bridge", *on, "state", state)

    def lose(self, per_mille: int) -> None:
        """Drops incoming packets at random; 0 drops none. Needs nft."""
        rule = f"numgen random mod 1000 < {per_mille} drop;"
        self._rule("prerouting priority -300", rule if per_mille else "")

    def reject_from(self, addresses: Sequence[str], answer: str) -> None:
        """Answers TCP from these IPv4 addresses like a firewall: with a "reset" or an ICMP message.

        "nothing" drops it. The ICMP message is a name that nft knows, such as "port-unreachable".
        Needs nft.
        """
        source = f"ip saddr {{ {', '.join(addresses)} }}"
        verdicts = {
            "nothing": f"{source} drop;",
            "reset": f"{source} tcp flags & rst == 0 reject with tcp reset;",
        }
        rejected = f"{source} meta l4proto tcp reject with icmp type {answer};"
        self._rule("input priority 0", verdicts.get(answer, rejected))

    def _rule(self, hook: str, rule: str) -> None:
        """Replaces the rule for the host's incoming packets; "" removes it. Needs nft."""
        if find("nft") is None:
            raise Unavailable("needs nft (nftables), which is not installed")
        table = f"table inet lab_{self.inner.interface}"
        self._nft(f"{table}\ndelete {table}\n")  # the first line makes sure that the table exists
        if rule:
            chain = f'type filter hook {hook}; iifname "{self.inner.interface}" {rule}'
            self._nft(f"{table} {{\nchain arriving {{ {chain} }}\n}}\n")

    def _nft(self, rules: str) -> None:
        run("ip", "netns", "exec", self.inner.namespace, "nft", "-f", "-", text=rules)

    def counters(self) -> Counters:
        """Returns what the host's interface has sent and received."""
        folder = Path("/sys/class/net") / self.inner.interface / "statistics"
        names = ("tx_bytes", "rx_bytes", "tx_packets", "rx_packets")
        files = [str(folder / name) for name in names]
        words = run("ip", "netns", "exec", self.inner.namespace, "cat", *files).split()
        return Counters(*map(int, words))
