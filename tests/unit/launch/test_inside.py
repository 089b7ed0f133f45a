"""Programs within a worker: they see what they would see without it, and join in time.

JAX and what joins are false here: `sitecustomize`, which Python loads first, puts the second where
the true one would be found. The true ones meet in the last test.
"""

import os
import subprocess
import sys
import textwrap
import types
from contextlib import nullcontext

import pytest

import replicax as rx
from replicax.launch import _inside

from helpers import completed

SHOWS = """
import __main__, os, sys
main = {name: getattr(__main__, name) for name in ("__file__", "__name__", "__package__")}
spec = __main__.__spec__ and (__main__.__spec__.name, __main__.__spec__.origin)
print(sys.argv, sys.path, main, spec, __main__.__dict__ is globals(), __builtins__, sys.flags)
class Mine: pass
import pickle
print(type(pickle.loads(pickle.dumps(Mine()))) is Mine)
"""
FALSE_JOIN = """
import sys, types
def join():
    print("joining", "jax" in sys.modules, "jax.numpy" in sys.modules)
sys.modules["replicax._mesh.processes"] = types.SimpleNamespace(join_from_environment=join)
"""


@pytest.fixture
def write(tmp_path):

    def write(files):
        for name, text in files.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(textwrap.dedent(text))

    return write


@pytest.fixture
def python(tmp_path):
    """Run Python in the folder; give what it printed, and its exit code last."""

    def python(*arguments, **environ):
        inherited = {name: value for name, value in os.environ.items() if name[:3] != "RX_"}
        environ = {"PYTHONPATH": "lib", "PYTHONDONTWRITEBYTECODE": "1", **environ}
        how = {"cwd": tmp_path, "env": inherited | environ, "stderr": subprocess.STDOUT}
        done = completed([sys.executable, *arguments], **how)
        return [*done.stdout.splitlines(), done.returncode]

    return python


@pytest.fixture
def inside(python):
    return lambda *arguments, **environ: python(_inside.__file__, *arguments, **environ)


@pytest.fixture
def false_jax(write):
    """A `jax` in which nothing is, and something that says when it joins."""
    write(
        {
            "lib/sitecustomize.py": FALSE_JOIN,
            "lib/jax/__init__.py": "import jax.first; print('jax is imported')",
            "lib/jax/first.py": "",
            "lib/jax/numpy.py": "print('jax.numpy is imported')",
        }
    )


@pytest.mark.parametrize(
    "arguments",
    [
        ["s.py", "a", "-m"],
        ["folder/s.py"],
        ["link.py"],
        ["-m", "pkg.s", "a"],
        ["-m", "pkg"],
        ["pkg", "a"],
    ],
)
@pytest.mark.parametrize("environ", [{}, {"PYTHONSAFEPATH": "1", "PYTHONPATH": "lib:."}])
def test_a_program_sees_what_it_would_see_without(
    arguments, environ, write, python, inside, tmp_path
):
    names = ("s.py", "folder/s.py", "pkg/s.py", "pkg/__main__.py")
    write({**dict.fromkeys(names, SHOWS), "pkg/__init__.py": ""})
    (tmp_path / "link.py").symlink_to("folder/s.py")
    shown = inside(*arguments, **environ)
    assert shown == python(*arguments, **environ)
    assert shown[1:] == ["True", 0]


@pytest.mark.parametrize(
    "program",
    [
        "def f(): raise ValueError('why')\nf()",
        "try: 1 / 0\nexcept ZeroDivisionError: raise ValueError('why')",
        "x = = 1",
        "raise SystemExit(7)",
        "raise SystemExit('why')",
        "raise KeyboardInterrupt",
        "import os; os.kill(os.getpid(), 9)",
        "import sys; sys.excepthook = lambda *error: print('theirs', error[2].tb_lineno)\n1 / 0",
        "import atexit, __main__; atexit.register(lambda: print(__main__.own))\nown = 7",
    ],
)
def test_a_program_ends_as_it_would_without(program, write, python, inside):
    write({"s.py": program})
    assert inside("s.py") == python("s.py")


def test_the_traceback_of_a_module_begins_with_the_module(write, inside, tmp_path):
    write({"m.py": "def f(): raise ValueError('why')\nf()"})
    lines = inside("-m", "m")
    assert lines[:2] == [
        "Traceback (most recent call last):",
        f'  File "{tmp_path}/m.py", line 2, in <module>',
    ]
    assert lines[-2:] == ["ValueError: why", 1]


@pytest.mark.parametrize("name", ["none", "pkg.none", "pkg"])
def test_a_module_that_is_not_there_is_named(name, write, python, inside):
    write({"pkg/__init__.py": ""})
    expected = name if name != "pkg" else "pkg.__main__"
    (said, code) = inside("-m", name)
    assert (said, code) == (f"{sys.executable}: No module named {expected}", 1)


def test_what_a_package_lacks_is_shown(write, inside):
    write({"pkg/__init__.py": "import none", "pkg/m.py": ""})
    assert inside("-m", "pkg.m")[-2:] == ["ModuleNotFoundError: No module named 'none'", 1]


@pytest.mark.usefixtures("false_jax")
@pytest.mark.parametrize("statement", ["import jax.numpy", "from jax import numpy", "import deep"])
def test_a_worker_joins_right_after_jax_is_imported(statement, write, inside):
    write({"s.py": f"{statement}\nimport jax\nprint('goes on')", "deep.py": "import jax.numpy"})
    expected = ["jax is imported", "joining True False", "jax.numpy is imported", "goes on", 0]
    assert inside("s.py") == expected


@pytest.mark.usefixtures("false_jax")
def test_a_module_joins_too(write, inside):
    write({"m.py": "import jax"})
    assert inside("-m", "m") == ["jax is imported", "joining True False", 0]


@pytest.mark.usefixtures("false_jax")
def test_a_program_without_jax_does_not_join(write, inside):
    write({"s.py": "import sys; print([n for n in ('replicax', 'typing') if n in sys.modules])"})
    assert inside("s.py") == ["[]", 0]


@pytest.mark.usefixtures("false_jax")
def test_joining_can_be_switched_off(write, inside):
    write({"s.py": "import jax"})
    assert inside("s.py", RX_JOIN="0") == ["jax is imported", 0]
    assert inside("s.py", RX_JOIN="1") == ["jax is imported", "joining True False", 0]


@pytest.mark.usefixtures("false_jax")
def test_processes_of_a_worker_do_not_join(write, inside):
    write(
        {
            "s.py": """
                import multiprocessing
                def use():
                    import jax
                if __name__ == "__main__":
                    for method in ("fork", "spawn"):
                        child = multiprocessing.get_context(method).Process(target=use)
                        child.start(); child.join(); print(method, child.exitcode, flush=True)
            """
        }
    )
    shown = inside("s.py", PYTHONUNBUFFERED="1")
    assert shown == ["jax is imported", "fork 0", "jax is imported", "spawn 0", 0]


@pytest.mark.usefixtures("false_jax")
def test_what_prevents_joining_is_raised_where_jax_is_imported(write, inside):
    write({"lib/sitecustomize.py": FALSE_JOIN.replace("print(", "raise RuntimeError(")})
    write({"s.py": "import deep", "deep.py": "import jax"})
    assert inside("s.py")[-2:] == ["RuntimeError: ('joining', True, False)", 1]


def test_a_function_is_called_once_and_after_a_second_try(tmp_path, monkeypatch):
    path = tmp_path / "rx_dummy.py"
    path.write_text("raise ImportError")
    monkeypatch.syspath_prepend(tmp_path)
    calls, before = [], list(sys.meta_path)
    _inside.after_import("rx_dummy", lambda: calls.append("rx_dummy" in sys.modules))
    with pytest.raises(ImportError):
        __import__("rx_dummy")
    assert calls == []
    path.write_text("value = 'loaded'")
    module = __import__("rx_dummy")
    assert (calls, module.value) == ([True], "loaded")
    assert type(module.__loader__).__name__ == "SourceFileLoader"
    assert module.__spec__.loader is module.__loader__
    assert sys.meta_path == before
    del sys.modules["rx_dummy"]


def test_a_function_is_called_at_once_if_the_module_is_there():
    calls = []
    _inside.after_import("os.path", lambda: calls.append(1))
    assert calls == [1]


def test_two_functions_may_wait_for_one_module(tmp_path, monkeypatch):
    (tmp_path / "rx_dummy.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    calls = []
    _inside.after_import("rx_dummy", lambda: calls.append(1))
    _inside.after_import("rx_dummy", lambda: calls.append(2))
    __import__("rx_dummy")
    assert sorted(calls) == [1, 2]
    del sys.modules["rx_dummy"]


@pytest.mark.parametrize(
    ("program", "noted"),
    [("", None), ("import sys; sys.exit(42)", 42), ("exit('no luck')", "no luck")],
)
def test_the_line_hears_of_the_exit_code(tmp_path, monkeypatch, program, noted):
    codes = []
    line = types.SimpleNamespace(note_exit=codes.append)
    monkeypatch.setitem(sys.modules, "replicax._control._ending", line)
    monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])
    monkeypatch.setattr(sys, "argv", [])
    monkeypatch.setattr(sys, "path", sys.path[:])
    (tmp_path / "a.py").write_text(program)
    with pytest.raises(SystemExit) if program else nullcontext():
        _inside.run(str(tmp_path / "a.py"), [], is_module=False)
    assert codes == [noted]


def test_workers_join_although_they_use_jax_first():
    def sums():
        import jax
        import numpy as np
        from jax.experimental import multihost_utils

        devices = jax.devices()  # the backend starts here
        everyone = multihost_utils.process_allgather(np.array([jax.process_index() + 1.0]))
        return len(devices), float(everyone.sum())

    env = {"JAX_PLATFORMS": "cpu"}
    assert rx.launch.run(sums, 2, devices_per_worker=3, env=env) == [(6, 3.0)] * 2


def test_workers_that_train_alone_are_told_once(launch, script):
    path = script("""
        import replicax as rx
        strategy = rx.MirroredStrategy()
        for _ in range(2): print("sum", strategy.run(lambda: 1.0))
    """)
    process = launch("--workers", "2", "--devices-per-worker", "1", path)
    out, err = process.communicate(timeout=100)
    assert process.returncode == 0
    assert out.count("sum") == 4
    assert err.count("rx.MultiWorkerMirroredStrategy()") == 1
