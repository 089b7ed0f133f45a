"""Traces written by hand, as JAX's profiler writes them of GPUs."""

from __future__ import annotations

import jax
import pytest

from replicax._tools.profile.times import device_times, operations

KERNEL = "regs:32 grid:1,1,1 block:128,1,1"


def trace(folder, planes):
    """A file with these planes: by name, events (name, begin and end in ms, stats)."""
    text = []
    for name, events in planes.items():
        names = sorted({event for event, *_ in events})
        keys = sorted({key for *_, stats in events for key in stats})
        lines = [
            f"events {{ metadata_id: {1 + names.index(event)} offset_ps: {begin * 10**9} "
            f"duration_ps: {(end - begin) * 10**9} "
            + " ".join(
                f"stats {{ metadata_id: {1 + keys.index(key)} "
                + (
                    f'str_value: "{value}" }}'
                    if isinstance(value, str)
                    else f"int64_value: {value} }}"
                )
                for key, value in stats.items()
            )
            + " }"
            for event, begin, end, stats in events
        ]
        tables = [
            f'{table} {{ key: {number} value {{ id: {number} name: "{one}" }} }}'
            for table, ones in (("event_metadata", names), ("stat_metadata", keys))
            for number, one in enumerate(ones, 1)
        ]
        text.append(
            f'planes {{ name: "{name}" lines {{ id: 1 name: "Stream #1" timestamp_ns: 5 '
            f"{' '.join(lines)} }} {' '.join(tables)} }}"
        )
    file = folder / "made.xplane.pb"
    data = jax.profiler.ProfileData
    file.write_bytes(data.text_proto_to_serialized_xspace("\n".join(text)))
    return file


def test_what_a_gpu_did(tmp_path):
    graph = {"hlo_op": "command_buffer_1", "kernel_details": KERNEL, "cuda_graph_id": 3}
    file = trace(
        tmp_path,
        {
            "/device:GPU:0": [
                ("MemcpyH2D", 0, 1, {"memcpy_details": "size:4"}),  # the batch: no program's
                ("loop_add_fusion", 1, 3, {"hlo_op": "fusion.1", "kernel_details": KERNEL}),
                ("sm90_xmma_gemm", 3, 5, graph),
                ("ncclDevKernel_AllReduce_Sum_f32_RING_LL", 5, 9, graph),
                ("cond_kernel", 9, 10, {"hlo_op": "while.3", "kernel_details": KERNEL}),
                ("loop_add_fusion", 20, 29, {"hlo_op": "fusion.1", "kernel_details": KERNEL}),
            ],
            "/device:GPU:1": [
                (
                    "all_reduce_kernel",
                    1,
                    4,
                    {"hlo_op": "all-reduce-start.2", "kernel_details": KERNEL},
                ),
            ],
            "/host:CPU": [
                ("train", 0, 10, {"step_num": 8}),
                ("train", 20, 30, {"step_num": 9}),
                ("fusion.1", 1, 9, {"hlo_op": "fusion.1", "device_ordinal": 0}),
            ],
        },
    )
    first, second = device_times(operations(file, {8}, "gpu"), 1)
    assert (first.device, second.device) == (0, 1)
    assert (first.own, first.collectives) == (pytest.approx(5e-3), pytest.approx(4e-3))
    assert (second.own, second.collectives) == (0, pytest.approx(3e-3))
    # Beside GPUs, the devices of the CPU are other devices of the same numbers.
    (of_cpu,) = device_times(operations(file, {8}, "cpu"), 1)
    assert of_cpu.own == pytest.approx(8e-3)
