"""The connection of this process to a Ray cluster that somebody else has started."""

from __future__ import annotations

import logging
import signal
import socket
import threading
from collections import Counter
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from replicax._core.env import RAY_ADDRESS, ray_asks_for_token, setting
from replicax._core.errors import ClusterError, needs

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping, Sequence

SECONDS_TO_GROW = 900.0  # a cluster that grows on demand has to start machines first

_SECONDS_TO_CONNECT = 10.0


def connect(address: str, runtime_env: Mapping[str, Any] | None = None) -> None:
    """Connect to a Ray cluster, unless this process is connected to one already."""
    ray = _ray()
    if ray.is_initialized():
        if runtime_env and not ray.get_runtime_context().runtime_env.get("working_dir"):
            raise ClusterError(
                "Ray is connected already, without a working folder, so the program cannot be sent "
                "to its machines. Pass a function, or connect with "
                "`ray.init(runtime_env={'working_dir': '.'})`. See docs/clusters.md."
            )
        return
    try:
        _check_reachable(setting(RAY_ADDRESS) if address == "auto" else address)
        with _own_sigterm():
            ray.init(
                address=address,
                runtime_env=dict(runtime_env or {}),
                log_to_driver=False,  # Ray's own reports, too, which would look like ours
                logging_level=logging.ERROR,
            )
    except ray.exceptions.RuntimeEnvSetupError as error:
        raise ClusterError(
            f"Ray cannot send this folder to its machines: {_first_line(error)} Name what the "
            "program does not need in a file .rayignore. See docs/clusters.md."
        ) from error
    except (OSError, RuntimeError, ValueError) as error:  # as Ray says that it is not there
        raise ClusterError(
            f"Cannot connect to Ray at {address!r}: {str(error).strip().rstrip('.')}. Start Ray by "
            "`ray start --head`, or correct the address. See docs/clusters.md."
        ) from error
    if not ray_asks_for_token():
        logging.getLogger("replicax").warning(
            "This Ray cluster asks for no token: whoever reaches it can run code there, and read "
            "the secret of our processes. Start Ray with RAY_AUTH_MODE=token."
        )


def _first_line(error: Exception) -> str:
    return next((line for line in str(error).splitlines() if line.strip()), "").strip()


def lacking(wanted: Sequence[Mapping[str, float]]) -> str:
    """The requested and the free resources of a Ray cluster that cannot start everything."""
    total, free = _ray().cluster_resources(), _ray().available_resources()
    asked = Counter(" + ".join(f"{n:g} {name}" for name, n in kind.items()) for kind in wanted)
    has = {
        name: f"{free.get(name, 0):g} of {total.get(name, 0):g} {name}"
        for kind in wanted
        for name in kind
    }
    wants = ", ".join(f"{count} × ({kind})" for kind, count in asked.items())
    return f"asked for {wants}; free there: {', '.join(has.values())}"


def _ray() -> Any:
    """The package, whose annotations are not complete."""
    with needs("A Ray cluster", extra="ps"):
        import ray
    return ray


def _check_reachable(address: str) -> None:
    """Fail at once if nobody listens where Ray would try for minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if host and "/" not in host and port.isdigit():
        socket.create_connection((host.strip("[]"), int(port)), _SECONDS_TO_CONNECT).close()


@contextmanager
def _own_sigterm() -> Generator[None]:
    """Keep this program's handler, in whose place `ray.init` puts one that raises `SystemExit`."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
