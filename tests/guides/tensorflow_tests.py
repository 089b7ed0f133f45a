"""Runs TensorFlow's own tests of `tf.distribute`, and those of Keras 2, here and in TensorFlow.

    python tests/guides/tensorflow_tests.py checkout --tensorflow PYTHON --json found.json

`checkout` has the folders `tensorflow/python/distribute` and `tf_keras/distribute` of the two
projects. Each file runs in two processes, on virtual CPU devices: in TensorFlow, which also says
what its modules export, and in Replicax. A case counts if it passes in TensorFlow and uses no name
that TensorFlow does not export. Graph mode, TPUs, GPUs and clusters are left out: a case that asks
for several devices has two CPU devices. Prints a table in Markdown.
"""

from __future__ import annotations

import argparse
import ast
import collections
import contextlib
import importlib
import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import traceback
import types
import unittest
from pathlib import Path
from typing import Any

CPUS = 4
SECONDS = 60  # limit of a case
FILE_SECONDS = 600
FOLDERS = ("tensorflow/python/distribute", "tf_keras/distribute")
FILES = {
    FOLDERS[0]: (
        *("checkpointing", "custom_training_loop_gradient", "custom_training_loop_input"),
        *("distribute_lib", "distributed_variable", "input_lib_type_spec"),
        *("mirrored_strategy", "mirrored_variable", "moving_averages", "one_device_strategy"),
        *("per_replica", "random_generator", "sharded_variable", "strategy_common"),
        *("strategy_gather", "tf_function", "values", "vars"),
        *("cluster_resolver/cluster_resolver", "cluster_resolver/slurm_cluster_resolver"),
        "cluster_resolver/tfconfig_cluster_resolver",
    ),
    FOLDERS[1]: (
        *("checkpointing", "ctl_correctness", "custom_training_loop_metrics"),
        *("custom_training_loop_models", "custom_training_loop_optimizer"),
        *("dataset_creator_model_fit", "distribute_strategy", "keras_dnn_correctness"),
        *("keras_embedding_model_correctness", "keras_image_model_correctness"),
        *("keras_metrics", "keras_models", "keras_optimizer_v2", "keras_rnn_model_correctness"),
        *("keras_save_load", "keras_utils", "minimize_loss", "mirrored_strategy"),
        *("mirrored_variable", "model_checkpoint", "saved_model_save_load", "sharded_variable"),
    ),
}
# TensorFlow 1, and attributes of classes that are not exported.
NOT_PUBLIC = (
    *("Internal:", "has no attribute '_", "has no object '_", "tf.Graph", ".unwrap"),
    *("make_input_fn_iterator", "make_dataset_iterator", "experimental_run.", "read_var"),
    *("batch_reduce_to.", "call_for_each_replica.", "experimental_run_steps_on_iterator"),
    "Strategy._should_use_with_coordinator",
    *("attribute 'distribute_strategy'", "attribute 'values'", "StrategyExtended.__init__"),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("checkout", type=Path, help="the folder with the tests")
    parser.add_argument("--tensorflow", help="the Python that has TensorFlow and tf_keras")
    parser.add_argument("--only", default="", help="files with this in their name")
    parser.add_argument("--json", type=Path, help="also write what was found to this file")
    parser.add_argument("--side", help=argparse.SUPPRESS)
    parser.add_argument("--names", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.side:
        run_cases(arguments.side, arguments.checkout, arguments.json, arguments.names)
    found, totals = {}, collections.Counter()
    print("| file | cases | in TensorFlow | count | pass | fail |\n|---|---|---|---|---|---|")
    for folder, names in FILES.items():
        for name in names:
            file = arguments.checkout / folder / f"{name}_test.py"
            if arguments.only not in str(file):
                continue
            found[f"{folder}/{name}"] = one = both(file, arguments.tensorflow)
            counts = compared(one)
            totals.update(counts)
            shown = " | ".join(str(counts[key]) for key in COLUMNS)
            print(f"| `{folder.partition('/')[0]}/…/{name}_test` | {shown} |", flush=True)
            if arguments.json:
                arguments.json.write_text(json.dumps(found))
    print(f"| **all** | {' | '.join(str(totals[key]) for key in COLUMNS)} |")


COLUMNS = ("cases", "in TensorFlow", "count", "pass", "fail")


def both(file: Path, tensorflow: str) -> dict[str, Any]:
    """What came of each case, on each side."""
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        names = Path(folder, "tensorflow.json")
        for side, python in (("tensorflow", tensorflow), ("replicax", sys.executable)):
            to = Path(folder, f"{side}.json")
            command = [python, __file__, str(file), "--side", side, "--json", str(to)]
            with contextlib.suppress(subprocess.TimeoutExpired):
                subprocess.run(
                    [*command, "--names", str(names)],
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    timeout=FILE_SECONDS,
                    check=False,
                )
            found[side] = json.loads(to.read_text()) if to.exists() else {"cases": {}}
    return found


def compared(found: dict[str, Any]) -> collections.Counter[str]:
    """How many cases there are, and how they end."""
    theirs, ours = found["tensorflow"]["cases"], found["replicax"]["cases"]
    ended = found["replicax"].get("ended", False)
    passed = [name for name, (how, _) in theirs.items() if how == "pass"]
    counts = collections.Counter({"cases": len(theirs), "in TensorFlow": len(passed)})
    for name in passed:
        # Cases that TensorFlow's own decorators make have other names: they are not found here.
        how, _ = ours.get(name, ("not public" if ended else "fail", ""))
        if how in ("pass", "fail"):
            counts.update(["count", how])
    return counts


# One side ----------------------------------------------------------------------------------------


def run_cases(side: str, file: Path, to: Path, names: Path) -> None:
    """Run the cases of a file in this process, and end it."""
    sys.path.insert(0, str(Path(__file__).parent))
    import tensorflow_stand_in as stand_in

    file = file.resolve()
    root = next(one for one in file.parents if one.name in ("tensorflow", "tf_keras")).parent
    found: dict[str, Any] = {"cases": {}}
    if side == "tensorflow":
        found["names"], found["modules"] = in_tensorflow(file, stand_in)
    else:
        in_replicax(root, json.loads(names.read_text()), stand_in)
    try:
        module = imported(side, file)
        stand_in.Absent.in_case = True
        for suite in unittest.defaultTestLoader.loadTestsFromModule(module):
            not_prepared = prepare(suite)
            for case in suite:
                name = case.id().partition(".")[2]
                if not name.endswith("test_session"):
                    found["cases"][name] = not_prepared or outcome(case)
                    to.write_text(json.dumps(found))
        found["ended"] = True
    except BaseException:
        found["import"] = traceback.format_exc()
    to.write_text(json.dumps(found))
    os._exit(0)  # whatever threads there are


def in_replicax(root: Path, said: dict[str, Any], stand_in: Any) -> None:
    os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={CPUS}"
    import replicax.tf as tf

    finder = stand_in.StandIns(tf, said["names"], root, set(said["modules"]))
    sys.meta_path.insert(0, finder)
    vars(tf)["__internal__"] = stand_in.internal(tf)
    tf.test.TestCase, tf.test.main = finder.case, lambda *a, **k: None


def in_tensorflow(file: Path, stand_in: Any) -> tuple[dict[str, dict[str, str]], list[str]]:
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    os.environ["TF_USE_LEGACY_KERAS"] = "1"
    import tensorflow as tf
    import tensorflow.compat.v2 as two

    cpu = tf.config.list_physical_devices("CPU")[0]
    devices = [tf.config.LogicalDeviceConfiguration()] * CPUS
    tf.config.set_logical_device_configuration(cpu, devices)
    made = stand_in.combinations(tf)
    for place in ("combinations", "strategy_combinations"):
        sys.modules[f"tensorflow.python.distribute.{place}"] = made
        setattr(importlib.import_module("tensorflow.python.distribute"), place, made)
    for one in (tf, two):
        one.__internal__.distribute.combinations = made
        one.__internal__.test.combinations = made
    return exported(file, tf)


def exported(file: Path, tf: Any) -> tuple[dict[str, dict[str, str]], list[str]]:
    """What TensorFlow exports of the modules that a test imports; the modules of Keras 2."""
    from tensorflow.python.util import tf_export

    def public(value: Any, key: str) -> str:
        with contextlib.suppress(Exception):
            for names, prefix in (
                (tf_export.get_v2_names(value), ""),
                (tf_export.get_v1_names(value), "compat.v1."),
            ):
                for name in names:
                    if not name.startswith("__internal__"):
                        return prefix + name
        return key if getattr(tf, key, None) is value else ""

    found: dict[str, dict[str, str]] = {}
    keras_modules: set[str] = set()
    libraries = [one for one in file.parent.glob("*.py") if not one.name.endswith("_test.py")]
    for path in [file, *libraries]:
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.ImportFrom) or not node.module:
                continue
            for name in [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]:
                source = name.replace("tf_keras", "tf_keras.src", 1)
                if name.startswith("tf_keras") and is_module(source):
                    keras_modules.add(name)
                if not name.startswith("tensorflow") or name in found:
                    continue
                with contextlib.suppress(Exception):
                    module = importlib.import_module(name)
                    values = {k: v for k, v in vars(module).items() if not k.startswith("__")}
                    these = {key: public(value, key) for key, value in values.items()}
                    found[name] = {key: text for key, text in these.items() if text}
                    for names, key in getattr(module, "_tf_api_constants", []):
                        found[name][key] = (names or [key])[0]
    return found, sorted(keras_modules)


def is_module(name: str) -> bool:
    with contextlib.suppress(ImportError):
        return importlib.util.find_spec(name) is not None
    return False


def imported(side: str, file: Path) -> Any:
    """The test as a module; where Keras 2 is installed, its modules are those of `tf_keras.src`."""
    text = file.read_text()
    if side == "tensorflow":
        text = re.sub(r"^from tf_keras\b", "from tf_keras.src", text, flags=re.MULTILINE)
    module = sys.modules["tested"] = types.ModuleType("tested")
    module.__file__ = str(file)
    exec(compile(text, str(file), "exec"), vars(module))
    return module


def prepare(suite: Any) -> tuple[str, str] | None:
    """Run `setUpClass`; how its cases end if it fails."""
    for case in suite:
        try:
            type(case).setUpClass()
        except Exception as error:
            return judged(f"{type(error).__name__}: {error}")
        return None
    return None


class Late(BaseException):
    """A case took too long."""


def late(*_: Any) -> None:
    raise Late


def outcome(case: unittest.TestCase) -> tuple[str, str]:
    """How a case ends, and the error."""
    result = unittest.TestResult()
    signal.signal(signal.SIGALRM, late)
    signal.alarm(SECONDS)
    try:
        case.run(result)
    except Late:
        return "fail", f"more than {SECONDS} s"
    finally:
        signal.alarm(0)
    if result.skipped:
        return "skip", result.skipped[0][1]
    wrong = [*result.errors, *result.failures]
    return judged(wrong[0][1]) if wrong else ("pass", "")


def judged(text: str) -> tuple[str, str]:
    """A failure, or a case that uses what TensorFlow does not export."""
    lines = [line for line in text.splitlines() if line and not line.startswith(" ")]
    errors = [line for line in lines if ":" in line and not line.startswith("Traceback")]
    last = errors[-1] if errors else text[-200:]
    return ("not public" if any(name in last for name in NOT_PUBLIC) else "fail"), text


if __name__ == "__main__":
    main()
