"""The network between machines: every packet goes through this process, which may spoil it.

`wire.py NAME=ADDRESS=PID ...` gives the network namespace of each process an interface, `eth0`. A
line of JSON at the standard input is a new `Weather`, and the end of the input ends the network.
The kernel's own `netem` is missing on many machines, and has no firewall.
"""

from __future__ import annotations

import ctypes
import fcntl
import heapq
import json
import os
import random
import select
import socket
import struct
import sys
import time
from dataclasses import dataclass, field

MTU = 1500
PACKETS_AT_ONCE = 64
SECONDS_OF_QUEUE = 0.5  # what a slow line holds back before it drops

_TUNSETIFF = 0x400454CA
_IFF_TUN_WITHOUT_HEADER = 0x1001
_CLONE_NEWNET = 0x40000000
_TCP, _SYN, _ACK = 6, 0x02, 0x10


@dataclass
class Weather:
    """What happens to packets; `down` are the machines that none reaches, and none leaves."""

    down: list[str] = field(default_factory=list)
    loss: float = 0.0
    delay: float = 0.0  # seconds, each way
    rate: float = 0.0  # bits a second of each machine; 0: as fast as it can
    ports: list[int] | None = None  # those at which others may begin a connection; None: all


class Port:
    """A machine's end of the wire."""

    def __init__(self, name, address, descriptor):
        self.name = name
        self.address = socket.inet_aton(address)
        self.descriptor = descriptor
        self.free_at = 0.0


def main():
    ports = [plugged(*text.split("=")) for text in sys.argv[1:]]
    print("ready", flush=True)
    run(ports)


def plugged(name, address, pid):
    """Make the interface in the machine's network, and keep the other end."""
    libc = ctypes.CDLL(None, use_errno=True)
    with open("/proc/self/ns/net") as own, open(f"/proc/{pid}/ns/net") as theirs:
        if libc.setns(theirs.fileno(), _CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), "setns")
        descriptor = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
        fcntl.ioctl(
            descriptor, _TUNSETIFF, struct.pack("16sH22x", b"eth0", _IFF_TUN_WITHOUT_HEADER)
        )
        os.system(f"ip address add {address}/24 dev eth0 && ip link set eth0 up mtu {MTU}")
        libc.setns(own.fileno(), _CLONE_NEWNET)
    return Port(name, address, descriptor)


def run(ports):
    by_descriptor = {port.descriptor: port for port in ports}
    by_address = {port.address: port for port in ports}
    dice, weather, waiting, number = random.Random(0), Weather(), [], 0
    poll = select.poll()
    for descriptor in (0, *by_descriptor):
        poll.register(descriptor, select.POLLIN)
    while True:
        left = 1000 * (waiting[0][0] - time.monotonic()) if waiting else None
        for descriptor, _ in poll.poll(left if left is None else max(0.0, left)):
            if not descriptor:
                line = sys.stdin.buffer.raw.readline()
                if not line:
                    return
                weather = Weather(**json.loads(line))
                print("done", flush=True)
                continue
            source = by_descriptor[descriptor]
            for packet in packets(descriptor):
                target = by_address.get(packet[16:20])
                if target is None or dice.random() < weather.loss:
                    continue
                if passes(packet, source, target, weather):
                    due = when(packet, source, weather)
                    number += 1
                    heapq.heappush(waiting, (due, number, target.descriptor, packet))
        now = time.monotonic()
        while waiting and waiting[0][0] <= now:
            _, _, descriptor, packet = heapq.heappop(waiting)
            try:
                os.write(descriptor, packet)
            except OSError:  # that machine is gone
                continue


def packets(descriptor):
    for _ in range(PACKETS_AT_ONCE):
        try:
            packet = os.read(descriptor, MTU + 100)
        except OSError:  # there is none left
            return
        if packet[0] >> 4 == 4:
            yield packet


def passes(packet, source, target, weather):
    if source.name in weather.down or target.name in weather.down:
        return False
    if weather.ports is None or packet[9] != _TCP:
        return True
    at = 4 * (packet[0] & 15)
    begins = packet[at + 13] & (_SYN | _ACK) == _SYN
    return not begins or int.from_bytes(packet[at + 2 : at + 4]) in weather.ports


def when(packet, source, weather):
    """The time at which a packet arrives; a line that is full holds it back or drops it."""
    now = time.monotonic()
    if weather.rate:
        source.free_at = max(now, source.free_at) + 8 * len(packet) / weather.rate
        if source.free_at - now > SECONDS_OF_QUEUE:
            source.free_at -= 8 * len(packet) / weather.rate
            return float("inf")
        now = source.free_at
    return now + weather.delay


if __name__ == "__main__":
    main()
