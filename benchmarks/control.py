"""What the workers' channel costs the chief: joining, an agreement, and watching them.

    python benchmarks/control.py --workers 4 32 128 256

The other workers are threads of a few other processes, each with a channel and sockets of its own,
so the CPU time of this process is the chief's alone. Each figure of an agreement is the least of
several rounds, as others use the machine, too.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from replicax._control import Limits, open_channel
from replicax._core.channel import Channel, set_current
from replicax._core.channel import agree as agree_on
from replicax.launch._ports import free_ports

PROCESSES = 4  # that hold the other workers
ROUNDS = 5
WATCHED = 6.0  # seconds
# What `fit` compares of a batch, and the sizes of what `run` exchanges.
FACTS = {"batch 12 of this pass": "float32[1024, 784], int32[1024], checksum 5f2a9c01"}
SHAPES = [[[128, 784], [128]], ["float32[None, 784]", "int32[None]"]]


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--workers", type=int, nargs="+", default=[4, 32, 128, 256])
    parser.add_argument("--calls", type=int, default=20, help="agreements in a round (default 20)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the figures")
    parser.add_argument("--serve", help=argparse.SUPPRESS)  # the work of another process
    return parser.parse_args()


class ByThread:
    """The channel of the process, which here is the channel of the thread that asks."""

    local = threading.local()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.local.channel, name)


def joined(index: int, size: int, address: str) -> Channel:
    """This thread's channel to the others."""
    channel = open_channel(
        index,
        size,
        address,
        limits=Limits(joining=300.0),
        on_failure=lambda lost: print(lost, file=sys.stderr),
    )
    ByThread.local.channel = channel
    return channel


def agree(channel: Channel) -> None:
    agree_on("batches", FACTS)


def exchange_same(channel: Channel) -> None:
    channel.exchange("shapes", SHAPES)


def exchange_own(channel: Channel) -> None:
    channel.exchange("seeds", [channel.index, SHAPES])


CALLS: dict[str, Callable[[Channel], None]] = {
    "agreement": agree,
    "exchange of one value": exchange_same,
    "exchange of own values": exchange_own,
}


def work(channel: Channel, calls: int) -> dict[str, tuple[float, float]]:
    """All that every worker does; the least milliseconds of CPU and of time, of each call."""
    found = {}
    for name, call in CALLS.items():
        rounds = []
        for _ in range(ROUNDS + 1):
            channel.barrier("round")
            wall, cpu = time.perf_counter(), time.process_time()
            for _ in range(calls):
                call(channel)
            took = time.process_time() - cpu, time.perf_counter() - wall
            rounds.append(tuple(1e3 * seconds / calls for seconds in took))
        cpu, wall = (min(column) for column in zip(*rounds[1:], strict=True))
        found[name] = cpu, wall
    return found


def serve(text: str) -> None:
    """Be some of the workers."""
    about = json.loads(text)

    def be(index: int) -> None:
        channel = joined(index, about["size"], about["address"])
        work(channel, about["calls"])
        channel.leave()

    threads = [threading.Thread(target=be, args=(index,)) for index in about["indices"]]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def measure(size: int, calls: int) -> dict[str, Any]:
    """All figures of the chief of a number of workers."""
    with free_ports(1) as (port,):
        address = f"127.0.0.1:{port}"
    others = list(range(1, size))
    about = {"size": size, "address": address, "calls": calls}
    processes = [
        subprocess.Popen(
            [sys.executable, __file__, "--serve", json.dumps({**about, "indices": indices})]
        )
        for number in range(PROCESSES)
        if (indices := others[number::PROCESSES])
    ]
    wall, cpu = time.perf_counter(), time.process_time()
    channel = joined(0, size, address)
    joining = time.perf_counter() - wall, time.process_time() - cpu
    time.sleep(2.0)  # the heartbeats begin
    cpu = time.process_time()
    time.sleep(WATCHED)
    watching = (time.process_time() - cpu) / WATCHED
    found = work(channel, calls)
    channel.leave()
    channel.close()
    for process in processes:
        process.wait(60)
    return {"workers": size, "joining": joining, "watching": watching, "calls": found}


def main() -> None:
    options = parse()
    set_current(ByThread())  # type: ignore[arg-type]
    if options.serve:
        serve(options.serve)
        return
    print(
        f"{'workers':>8}{'joining s':>11}{'its CPU s':>11}{'watching':>10}"
        + "".join(f"{name:>25}" for name in CALLS)
        + "\n"
        + f"{'':40}"
        + f"{'ms of CPU   (ms)':>25}" * len(CALLS)
    )
    rows = []
    for size in options.workers:
        found = measure(size, options.calls)
        rows.append(found)
        seconds, cpu = found["joining"]
        calls = "".join(
            f"{cpu:15.3f} {f'({wall:.1f})':>9}" for cpu, wall in found["calls"].values()
        )
        print(
            f"{size:8}{seconds:11.2f}{cpu:11.2f}{100 * found['watching']:9.2f}%{calls}", flush=True
        )
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
