"""Spans of time, operations of devices and traces by hand, as JAX's profiler writes them."""

import jax
import pytest

from replicax._tools.profile.summary import divided
from replicax._tools.profile.times import (
    DeviceTimes,
    Moment,
    Operation,
    Span,
    Step,
    device_times,
    mean,
    operations,
    split,
)


def span(part, begin, end, cpu=(0.0, 0.0)):
    return Span(part, Moment(begin, cpu[0]), Moment(end, cpu[1]))


def step(begin, end, cpu=0.0):
    return Step("train step", Moment(begin, 0.0), Moment(end, cpu))


def test_a_moment_belongs_to_the_span_that_began_last():
    # 0 ─ compute ───────────── 6, with compile from 1 to 4, and in that another from 2 to 3.
    spans = [span("compute", 0, 6), span("compile", 2, 3), span("compile", 1, 4)]
    assert split(step(0, 10), spans) == pytest.approx(
        {"compute": 3, "compile": 3, "python": 0, "other": 4}
    )


def test_spans_reach_beyond_the_step():
    found = split(step(2, 5), [span("input", 0, 3), span("compute", 4, 9), span("copy", 6, 7)])
    assert found == pytest.approx({"input": 1, "compute": 1, "python": 0, "other": 1})


def test_what_no_span_has_is_python_as_far_as_the_thread_computed():
    # Of 10 seconds 4 are in a span, in which the thread computed 1 of 4: 3 are Python's.
    found = split(step(0, 10, cpu=4.0), [span("compute", 0, 4, cpu=(0.0, 1.0))])
    assert found == pytest.approx({"compute": 4, "python": 3, "other": 3})


def test_the_parts_of_the_mean_are_the_mean_step():
    spans = [span("input", 0, 1), span("input", 4, 7)]
    found = mean([step(0, 4), step(4, 10)], spans)
    assert found["input"] == 2
    assert sum(found.values()) == pytest.approx(5)


def test_a_collective_counts_where_nothing_is_computed_beside_it():
    first = [
        Operation("dot.1", 0, 4),
        Operation("psum.2", 3, 7),
        Operation("while.3", 0, 9),  # its body has events of its own
        Operation("python.4", 7, 8),
    ]
    second = [Operation("dot.1", 0, 6), Operation("all-reduce-start.2", 6, 7)]
    found = device_times({1: second, 0: first}, 2, communication={"psum.2"}, callbacks={"python.4"})
    assert found == (DeviceTimes(0, 2.0, 1.5, 0.5), DeviceTimes(1, 3.0, 0.5, 0.0))
    assert found[0].busy == 4.0


def test_the_time_of_a_program_is_divided_as_the_slowest_device_was_seen():
    times = [DeviceTimes(0, 1.0, 3.0, 0.0), DeviceTimes(1, 3.0, 1.0, 1.0)]
    found = divided({"compute": 5.0, "callbacks": 0.5}, times, seen=10.0)
    # The program took 10 where it was seen and 5 where it was measured: all is half as long.
    assert found == {"compute": 1.5, "collectives": 0.5, "callbacks": 1.0, "launch": 2.5}


def test_more_than_was_seen_is_made_to_fit():
    found = divided({"compute": 2.0, "callbacks": 0.0}, [DeviceTimes(0, 3.0, 1.0, 0.0)], seen=2.0)
    assert found == {"compute": 1.5, "collectives": 0.5, "callbacks": 0.0, "launch": 0.0}


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
    file.write_bytes(jax.profiler.ProfileData.text_proto_to_serialized_xspace("\n".join(text)))
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
                )
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
