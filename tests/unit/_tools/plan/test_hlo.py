"""Programs as the compilers write them, cut down to what counts; what they send."""

from types import SimpleNamespace

import pytest

from replicax._tools.plan.hlo import Collective, collectives
from replicax._tools.profile.result import Collectives, facts


def found(*lines, more=""):
    """What is found in an entry of these lines, with other computations above."""
    body = "\n".join(f"  {line}" for line in lines)
    entry = f"ENTRY %main (a: f32[8]) -> f32[8] {{\n{body}\n}}"
    return list(collectives(f"HloModule jit_step, is_scheduled=true\n\n{more}\n{entry}", 8))


@pytest.mark.parametrize(
    ("groups", "size"),
    [
        ("{{0,1,2,3},{4,5,6,7}}", 4),
        ("[2,4]<=[8]", 4),
        ("[4,2]<=[2,4]T(1,0)", 2),
        ("mesh['axis_0'=8,'axis_1'=1] {'axis_0'}", 8),
        ("mesh['axis_0'=2,'axis_1'=4] {'axis_1'}", 4),
        ("mesh['x'=2,'y'=2,'z'=2] {'x','z'}", 4),
        ("{}", 8),
    ],
)
def test_groups_are_written_in_several_ways(groups, size):
    line = f"%r = bf16[3,5]{{1,0:T(8,128)}} all-reduce(%a), replica_groups={groups}, to_apply=%add"
    assert found(line) == [Collective("all-reduce", 30, size)]


@pytest.mark.parametrize(
    ("line", "collective"),
    [
        (
            (
                "%r = (f32[], f32[3,3]{1,0:T(4,128)S(1)}, /*index=2*/f32[10]{0:T(128)}) "
                "all-reduce(%a, %b, /*index=2*/%c), replica_groups={}"
            ),
            Collective("all-reduce", 4 + 36 + 40, 8),
        ),
        (
            "%g = (f32[4]{0}, f32[32]{0}) all-gather-start(%a), replica_groups={}, dimensions={0}",
            Collective("all-gather", 128, 8, overlapped=True),
        ),
        (
            (
                "%g = ((f32[4]{0}, f32[2]{0}), (f32[32]{0}, f32[16]{0})) all-gather-start(%a, %b), "
                "replica_groups={}"
            ),
            Collective("all-gather", 192, 8, overlapped=True),
        ),
        (
            (
                "%p = (f32[6]{0}, f32[6]{0}, u32[]{:S(2)}, u32[]{:S(2)}) "
                "collective-permute-start(%a), source_target_pairs={{0,1},{1,0}}"
            ),
            Collective("collective-permute", 24, 8, overlapped=True),
        ),
        (
            "ROOT %s = f32[4]{0} reduce-scatter(%a), replica_groups=[1,8]<=[8]",
            Collective("reduce-scatter", 16, 8),
        ),
        ("%t = s8[16]{0} all-to-all(%a), replica_groups={}", Collective("all-to-all", 16, 8)),
    ],
)
def test_one_operation(line, collective):
    assert found(line) == [collective]


@pytest.mark.parametrize(
    "line",
    [
        "%d = f32[32]{0} all-gather-done(%g)",
        "%r = f32[3] all-reduce(%a), replica_groups={{0},{1},{2},{3},{4},{5},{6},{7}}",
        '%f = f32[3] fusion(%a), kind=kLoop, calls=%c, metadata={op_name="all-reduce(x)"}',
        "%e = f32[3] get-tuple-element(%all-reduce.1), index=0",
    ],
)
def test_what_sends_nothing(line):
    assert found(line) == []


SCATTER = """
%all-reduce-scatter.2 (input_0: f32[64,8]) -> f32[8,8] {
  %all-reduce.13 = f32[64,8]{1,0} all-reduce(%input_0), replica_groups={{0,1,2,3,4,5,6,7}}
  ROOT %slice = f32[8,8]{1,0} dynamic-slice(%all-reduce.13, %i, %z), dynamic_slice_sizes={8,8}
}
"""


def test_a_reduce_scatter_of_tpus_is_a_fusion():
    line = "%f = f32[8,8]{1,0} fusion(%a), kind=kCustom, calls=%all-reduce-scatter.2"
    assert found(line, more=SCATTER) == [Collective("reduce-scatter", 256, 8)]


PART = """
%part.{n} (p: f32[4]) -> f32[32] {{
  ROOT %g.{n} = f32[32]{{0}} all-gather(%p), channel_id=13, frontend_attributes={{chain_id="0"}}
}}
"""


def test_an_operation_spread_over_fusions_counts_once():
    lines = [f"%f.{n} = f32[32]{{0}} fusion(%a), kind=kCustom, calls=%part.{n}" for n in range(3)]
    more = "".join(PART.format(n=n) for n in range(3))
    assert found(*lines, more=more) == [Collective("all-gather", 128, 8, overlapped=True)]


LOOP = """
%add (x: f32[], y: f32[]) -> f32[] {
  ROOT %s = f32[] add(%x, %y)
}

%body (p: (s32[], f32[8])) -> (s32[], f32[8]) {
  %p = (s32[]{:T(128)}, f32[8]{0}) parameter(0)
  %i = s32[]{:T(128)} get-tuple-element(%p), index=0
  %v = f32[8]{0} get-tuple-element(%p), index=1
  %two = s32[]{:T(128)} constant(2)
  %next = s32[]{:T(128)} add(%i, %two)
  %r = f32[8]{0} all-reduce(%v), replica_groups={}, to_apply=%add
  ROOT %t = (s32[]{:T(128)}, f32[8]{0}) tuple(%next, %r)
}

%cond (p: (s32[], f32[8])) -> pred[] {
  %p = (s32[]{:T(128)}, f32[8]{0}) parameter(0)
  %i = s32[]{:T(128)} get-tuple-element(%p), index=0
  %end = s32[]{:T(128)} constant(7)
  ROOT %c = pred[]{:T(512)} compare(%i, %end), direction=LT
}
"""
START = ["%one = s32[] constant(1)", "%k = s32[] copy(%one)", "%t = (s32[], f32[8]) tuple(%k, %a)"]
WHILE = "%w = (s32[], f32[8]) while(%t), condition=%cond, body=%body"


@pytest.mark.parametrize(
    ("lines", "turns"),
    [
        ([*START, WHILE], 3),  # 1, 3, 5
        ([*START, WHILE + ', backend_config={"known_trip_count":{"n":"12"}}'], 12),
        (["%t = (s32[], f32[8]) tuple(%b, %a)", WHILE], 1),  # nobody knows where it starts
    ],
)
def test_loops_count_as_often_as_they_turn(lines, turns):
    assert found(*lines, more=LOOP) == [Collective("all-reduce", 32, 8, times=turns)]


def test_a_computation_that_nobody_calls_does_not_run():
    assert found("%n = f32[8] negate(%a)", more=LOOP) == []


def test_both_branches_of_a_condition_count():
    branch = (
        "%{} (p: f32[8]) -> f32[8] {{\n  ROOT %r = f32[8] all-reduce(%p), replica_groups={{}}\n}}\n"
    )
    line = "%c = f32[8] conditional(%i, %a, %a), branch_computations={%yes, %no}"
    assert len(found(line, more=branch.format("yes") + branch.format("no"))) == 2


TEXT = """\
HloModule jit_program

ENTRY %main (x: f32[8]) -> f32[8] {
  %x = f32[8]{0} parameter(0)
  %all-reduce.1 = f32[8]{0} all-reduce(%x), replica_groups={{0,1}}, to_apply=%add
  %psum.2 = f32[4]{0} all-reduce(%x), replica_groups={{0,1}}, to_apply=%add
  %custom-call.3 = f32[] custom-call(%x), custom_call_target="xla_ffi_python_cpu_callback"
  %custom-call.4 = f32[] custom-call(%x), custom_call_target="__onednn$matmul"
  ROOT %all-gather.5 = f32[8]{0} all-gather(%psum.2), replica_groups={{0,1}}
}
"""


def test_collectives_are_added_up_by_kind_and_calls_of_python_named():
    memory = SimpleNamespace(
        argument_size_in_bytes=100,
        temp_size_in_bytes=20,
        output_size_in_bytes=70,
        alias_size_in_bytes=64,
    )
    compiled = SimpleNamespace(as_text=lambda: TEXT, memory_analysis=lambda: memory)
    found = facts(compiled, 2)
    # 8 and 4 numbers of 4 bytes.
    assert found.collectives == (Collectives("all-gather", 1, 32), Collectives("all-reduce", 2, 48))
    assert (found.arguments, found.temporaries, found.results) == (100, 20, 6)
    assert found.communication == {"all-reduce.1", "psum.2", "all-gather.5"}
    assert found.callbacks == {"custom-call.3"}
