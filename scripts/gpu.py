"""What a machine with an NVIDIA GPU can show: checks, the table of speeds, and the page with it.

    scripts/gpu.py                     # all parts, in their order
    scripts/gpu.py checks bench        # some of them
    scripts/gpu.py --dry-run           # all that needs no GPU, on the CPU
    scripts/gpu.py bench -- --only resnet50 --types bfloat16

`install` adds JAX for the CUDA of the driver to this environment, `checks` runs tests/gpu and the
conformance tests, `bench` runs benchmarks/gpu.py, `docs` puts its table into docs/accelerators.md.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))

from harness.report import put_between_markers

from replicax._core.machine import nvidia
from replicax._tools.doctor.checks import best_cuda
from replicax._tools.doctor.facts import gather

ROOT = Path(__file__).parents[1]
PAGE, TABLES = ROOT / "docs" / "accelerators.md", ROOT / "build" / "benchmarks"
COMMAND = "make gpu"
ENOUGH = 14  # processes of tests: each needs a core, and half a gigabyte of the GPU


def install() -> None:
    """Add JAX's plugin for the driver's CUDA."""
    extra = f"cuda{best_cuda(gather())}"
    print(f"the extra {extra} fits the driver and the GPUs", flush=True)
    run("-m", "pip", "install", "--quiet", "-c", "constraints.txt", "-e", f".[{extra}]")


def checks(*, dry: bool) -> None:
    """Run the tests that take a GPU; on it, the conformance tests, too."""
    processes = 2 if dry else min(ENOUGH, os.cpu_count() or 1)
    pytest = "-m", "pytest", "-q", "-n", str(processes)
    if dry:
        run(*pytest, "--dist", "loadfile", "tests/gpu")
        return
    places = {"RX_TESTS_ON": "gpu", "NPROC": "8"}
    alone = "tests/gpu/test_out_of_memory.py"  # it takes all of the GPU's memory
    run(*pytest, "tests/gpu", f"--ignore={alone}", **places)
    run("-m", "pytest", "-q", alone, **places)
    run(*pytest, "tests/conformance", "-m", "not slow or core", **places)


def bench(arguments: list[str], *, dry: bool) -> None:
    """Measure, and write a table below TABLES."""
    run("benchmarks/gpu.py", *(["--dry-run"] if dry else []), *arguments)


def docs(*, dry: bool) -> None:
    """Put the table into the page, or only try to."""
    table = TABLES / "dry" / "gpu.md" if dry else TABLES / "gpu.md"
    page = put_between_markers(PAGE.read_text(), table.read_text(), COMMAND)
    if not dry:
        PAGE.write_text(page)


def run(*arguments: str, **variables: str) -> None:
    """Run this Python; a failure ends the script."""
    env = os.environ | {"KERAS_BACKEND": "jax"} | variables
    done = subprocess.run([sys.executable, *arguments], cwd=ROOT, env=env, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(arguments)}: exit code {done.returncode}")


def main() -> None:
    parts = ("install", "checks", "bench", "docs")
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(parts)}")
    parser.add_argument("--dry-run", action="store_true", help="on the CPU, with small models")
    own, beyond = sys.argv[1:], []
    if "--" in own:
        place = own.index("--")
        own, beyond = own[:place], own[place + 1 :]
    options = parser.parse_args(own)
    if unknown := set(options.parts) - set(parts):
        parser.error(f"{', '.join(sorted(unknown))}: not one of {', '.join(parts)}")
    dry, wanted = options.dry_run, options.parts or parts
    if not dry and not nvidia.count():
        sys.exit("No NVIDIA GPU is here, or its driver is missing: see `nvidia-smi`, or --dry-run.")
    if "install" in wanted and not dry:
        install()
    if "checks" in wanted:
        checks(dry=dry)
    if "bench" in wanted:
        bench(beyond, dry=dry)
    if "docs" in wanted:
        docs(dry=dry)


if __name__ == "__main__":
    main()
