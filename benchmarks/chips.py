"""How three models would do on 1 to 4096 chips, by arithmetic alone: what docs/scaling.md shows.

    python benchmarks/chips.py --tpu v5e:4x4

Nothing is compiled and nothing measured. What a row costs is counted by hand, see `MODELS`;
`replicax plan --scale` does the same with what the compiler counts.
"""

from __future__ import annotations

import argparse
import math
from dataclasses import dataclass

from replicax._tools.plan._chips import TPUS
from replicax._tools.plan._collectives import Collective
from replicax._tools.plan._render_scaling import to_text
from replicax._tools.plan._result import Row
from replicax._tools.plan._scaling import scale

COUNTS = (1, 4, 16, 64, 256, 512, 1024, 4096)


@dataclass(frozen=True)
class Model:
    """What a training step costs.

    Args:
        rows: Of a chip: some, and more.
        flops: Operations of a row: three times those of the forward pass.
        traffic: Bytes that a row reads and writes in the chip's memory, very roughly.
        parameters: Numbers that are learnt; a step touches 20 bytes for each of them.
        statistics: All-reduces of the BatchNorms of `fit`, about 3.5 for each of them.
    """

    rows: tuple[int, ...]
    flops: float
    traffic: float
    parameters: int
    statistics: int


MODELS = {
    "mlp": Model((1024, 16384), 6 * 100e6, 0.4e6, 100_000_000, 0),
    "resnet50": Model((64, 256), 24.6e9, 150e6, 25_600_000, 186),
    "resnet20": Model((128, 2048), 0.246e9, 6e6, 270_000, 66),
}


def step(model: Model, rows: int, topology: str) -> Row:
    """As if it had been compiled."""
    kind, _, shape = topology.partition(":")
    chips = math.prod(map(int, shape.split("x")))
    gradients = Collective("all-reduce", 4 * model.parameters, chips)
    statistics = Collective("all-reduce", 512, chips, times=model.statistics)
    return Row(
        topology=topology,
        strategy="mirrored",
        devices=chips,
        replicas=chips,
        batch=rows * chips,
        chip=TPUS[kind],
        capacity=None,
        fits=None,
        needed=None,
        memory=None,
        flops=rows * model.flops,
        memory_traffic=rows * model.traffic + 20 * model.parameters,
        collectives=(gradients, statistics) if model.statistics else (gradients,),
        wire={},
        estimate=None,
        largest=None,
        compile_seconds=0.0,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--tpu", default="v5e:4x4", metavar="KIND:SHAPE", help="the kind of chip")
    options = parser.parse_args()
    for name, model in MODELS.items():
        for rows in model.rows:
            (found,) = scale([step(model, rows, options.tpu)], COUNTS, fixed_batch=False)
            print(f"{name}, {rows} rows a chip\n{to_text(found)}\n")


if __name__ == "__main__":
    main()
