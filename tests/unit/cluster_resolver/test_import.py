"""Importing the package costs milliseconds and starts nothing."""

import ast
from pathlib import Path

import replicax as rx

from helpers import run_python


def test_importing_needs_the_standard_library_only():
    program = """
        import sys, time
        import dataclasses, json, pathlib, re, typing, urllib.parse  # what Python itself brings

        start = time.process_time()
        import replicax as rx
        rx.cluster_resolver.detect({})
        elapsed = time.process_time() - start
        known = {*sys.stdlib_module_names, "replicax", "sitecustomize"}
        tops = {name.partition(".")[0] for name in sys.modules}
        heavy = {"ssl", "urllib.request", "http.client", "subprocess"} & set(sys.modules)
        print(elapsed, *heavy, *sorted(t for t in tops - known if t in ("jax", "keras", "numpy")))
    """
    elapsed, *heavy = run_python(program).split()
    assert heavy == []
    assert float(elapsed) < 2.0  # of CPU: some 20 ms, more where bytecode is not kept


def test_a_resolver_can_be_asked_before_jax_starts():
    program = """
        import sys
        import replicax as rx

        cluster = {"worker": ["a:1", "b:1"]}
        resolver = rx.cluster_resolver.SimpleClusterResolver(cluster, task_type="worker", task_id=1)
        task = rx.cluster_resolver.task_of(resolver)
        print(*rx.cluster_resolver.jax_process(resolver.cluster_spec(), task))
        print("jax" in sys.modules, "keras" in sys.modules)
    """
    assert run_python(program) == "a:1 2 1\nFalse False\n"


def test_every_public_name_has_an_example():
    package = Path(rx.cluster_resolver.__file__)
    imports = [
        node for node in ast.parse(package.read_text()).body if isinstance(node, ast.ImportFrom)
    ]
    names = [alias.asname for node in imports for alias in node.names]
    documented = [
        name for name in names if ">>>" in (getattr(rx.cluster_resolver, name).__doc__ or "")
    ]
    assert set(names) - set(documented) == {"JaxProcess", "fetch_json"}
