"""Two small programs beside the workers, so that no worker outlives a launcher that was killed.

They run by file name, not as modules, so that they start within milliseconds and need no package.

`watch` reads process groups from its standard input: `+4711` to remember one, `-4711` to forget it.
The input ends when the launcher ends, however that happens; groups still remembered are then
killed.

`gate FD program…` becomes the program once it has read a byte from FD, and ends if none can come
any more. The launcher sends the byte after the watcher knows the group, so every running program is
watched.
"""

from __future__ import annotations

import os
import signal
import sys


def main(arguments: list[str]) -> None:
    """Run `watch` or the gate, as the first argument says."""
    if arguments[0] == "watch":
        watch()
    else:
        pass_gate(int(arguments[1]), arguments[2:])


def watch() -> None:
    """Kill the groups that are remembered when the input ends."""
    groups: set[int] = set()
    for line in sys.stdin:
        (groups.add if line[0] == "+" else groups.discard)(int(line[1:]))
    for group in groups:
        try:
            os.killpg(group, signal.SIGKILL)
        except OSError:  # it has already ended
            continue


def pass_gate(descriptor: int, program: list[str]) -> None:
    """Become the program, once the byte has come."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # so that Ctrl-C shows no traceback of this file
    if not os.read(descriptor, 1):
        return
    os.close(descriptor)
    try:
        os.execvp(program[0], program)
    except OSError as error:
        print(f"{program[0]}: {error.strerror}", file=sys.stderr)
        sys.exit(127)


if __name__ == "__main__":
    main(sys.argv[1:])
