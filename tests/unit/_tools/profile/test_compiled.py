"""What is read from the text of a compiled program."""

from __future__ import annotations

from types import SimpleNamespace

from replicax._tools.profile.result import Collectives, facts

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
