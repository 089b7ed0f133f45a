"""What the tests of processes share: whether one is still there, and which."""

from pathlib import Path

from helpers import wait_until


def is_running(process_id):
    """Whether a process has not ended. One that nobody has asked for its exit code has."""
    try:
        state = Path(f"/proc/{process_id}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state not in "ZX"


def running_with(variable):
    """The processes that have `NAME=value` in their environment and have not ended."""
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            variables = path.read_bytes().split(b"\0")
        except OSError:
            continue
        if variable.encode() in variables and is_running(path.parent.name):
            found.append(int(path.parent.name))
    return found


def outcome(process):
    """Wait for it; give its exit code, the lines it printed, and those of errors."""
    out, err = process.communicate(timeout=100)
    return process.returncode, out.splitlines(), err.splitlines()


def wait_for_pids(folder, count):
    """Wait for programs that write files named after their process ids; give these."""
    wait_until(lambda: len(list(folder.glob("pid-*"))) >= count)
    return sorted(int(path.name.removeprefix("pid-")) for path in folder.glob("pid-*"))
