"""How the tests start JAX: read before it is imported."""

import os

import jaxlib.version

# `RX_TESTS_ON=gpu`: strategies have GPUs, as many as there are, where they have CPUs else.
ON_GPUS = os.environ.get("RX_TESTS_ON") == "gpu"

# What the tests compile is small, and compiling takes longer than all else. XLA divides and fuses
# operations as ever, but makes machine code of them by the quicker of its two ways, in one piece,
# and without trying hard: in less than a third of the time.
FLAGS = [
    "--xla_backend_optimization_level=0",
    "--xla_llvm_disable_expensive_passes=true",
    "--xla_cpu_parallel_codegen_split_count=1",
]
if jaxlib.version.__version_info__ < (0, 11):  # later ones end a process that has this flag
    FLAGS.append("--xla_cpu_use_fusion_emitters=false")
if ON_GPUS:  # where to try kernels, for the fastest, would take most of the time
    FLAGS = ["--xla_gpu_autotune_level=0"]
