"""Joining the processes of a cluster: JAX's multi-process runtime, and the workers' channel.

Who is in the cluster is known already (`cluster_resolver`). JAX can join once, before it is used.
"""

from __future__ import annotations

import functools
import json
import logging
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils

from replicax._control import (
    Alone,
    ClusterChannel,
    Limits,
    current,
    meet,
    open_channel,
    set_current,
    split,
    wait_until_open,
)
from replicax._control.agreement import agree
from replicax._core.env import RX_SECOND_PORT, prefer_nccl_ring, second_port
from replicax._core.errors import BackendAlreadyInitialized, ClusterError, ClusterSpecError
from replicax._core.machine.startup import begin
from replicax._core.options import CommunicationImplementation, CommunicationOptions
from replicax._cpu.tuning import agree_on_tuning
from replicax._net import (
    HOW_TO,
    Relay,
    Secret,
    given_secret,
    interface_of,
    is_loopback,
    secret_of_this_machine,
)
from replicax._program.explain import is_device_error
from replicax._program.identity import versions
from replicax.cluster_resolver import ClusterResolver, JaxProcess, detect

logger = logging.getLogger("replicax")

Announce = Callable[..., AbstractContextManager[dict[str, Any]]]

_SECONDS_TO_JOIN = 300.0
# All have said good-bye over the channel before.
_SECONDS_TO_LEAVE = 20
# Until the chief has started JAX's service. Who asks before then is heard a second later.
_SECONDS_TO_OPEN = 5.0
_ENDPOINT_BYTES = 1024


def join_from_environment() -> None:
    """Join the cluster that the environment describes, if it has several workers.

    Those that parameter servers are for do not compute together: each waits for closures.
    """
    resolver = detect()
    if resolver is not None and "ps" in resolver.cluster_spec().jobs:
        return
    process = training_process(resolver)
    if process is not None and resolver is not None:
        join(process, cluster=resolver.cluster_name())


def start(resolver: ClusterResolver | None, options: CommunicationOptions) -> bool:
    """Join a cluster, if there is one, and see that all its workers are alike.

    Returns whether there are several.
    """
    begin()
    if options.implementation is CommunicationImplementation.RING:
        prefer_nccl_ring()
    process = training_process(resolver)
    if process is not None and resolver is not None:
        join(process, options.timeout_seconds, cluster=resolver.cluster_name())
    _warn_of_nccl_without_gpus(options)
    if process is None or process.num_processes == 1:
        return False
    current().bound(options.timeout_seconds)
    agree("set-up", {**versions(), "options": str(options)})
    agree_on_tuning()
    return True


def training_process(resolver: ClusterResolver | None) -> JaxProcess | None:
    """The process of a JAX cluster that this one is; None if it works alone."""
    return None if resolver is None else resolver.jax_process()


def _warn_of_nccl_without_gpus(options: CommunicationOptions) -> None:
    platform = jax.local_devices()[0].platform
    if options.implementation is CommunicationImplementation.NCCL and platform != "gpu":
        logger.warning(
            "NCCL connects GPUs only; the devices here are of kind %s. Leave `implementation` at "
            "AUTO.",
            platform,
        )


def join(process: JaxProcess, timeout: float | None = None, *, cluster: str = "") -> None:
    """Make this process a part of a cluster, unless it is one already.

    The workers meet before they join, because JAX ends a process whose cluster is not complete.
    They wait for `timeout` seconds, or for 300. `cluster` is what all its processes call it, see
    `cluster_name`.
    """
    if process.num_processes == 1:
        return
    if not jax.distributed.is_initialized():
        secret = secret_of(process)
        announce = _at_address(process, timeout, cluster, secret)
        line = _open(process, announce, timeout, secret)
        _join_jax(process, line)
    else:  # by us, or by the user in his own way
        _check_same(process)
        if not isinstance(current(), Alone):
            return
        line = _open(process, _by_devices, timeout, secret_of(process))
    # After JAX's own hooks, so before them at the end: then nobody waits in JAX's barrier.
    line.install_exit_hooks(is_device_error)
    set_current(line)


def _join_jax(process: JaxProcess, line: ClusterChannel) -> None:
    # It would take SIGTERM for itself, so that nothing else could be ended by it.
    jax.config.update("jax_enable_preemption_service", False)
    address = process.coordinator_address
    if process.process_id:
        wait_until_open(address, _SECONDS_TO_OPEN)
        address = Relay(split(address)).address
    try:
        jax.distributed.initialize(
            address,
            process.num_processes,
            process.process_id,
            coordinator_bind_address=_bind_address(process.coordinator_address),
            shutdown_timeout_seconds=_SECONDS_TO_LEAVE,
        )
    except RuntimeError as error:
        line.explain(error)  # if the chief has died, this process ends there
        line.fail(str(error))
        if "before" not in str(error):
            raise
        raise BackendAlreadyInitialized(
            "JAX was used before this process could join its cluster. Create the strategy at the "
            "top of the program, or start it with `replicax run train.py`, which joins the "
            "cluster before your code runs."
        ) from error


def secret_of(process: JaxProcess) -> Secret | None:
    """The secret of a cluster; None if it has none, of which the chief warns once.

    A cluster on one machine has the secret of its user.
    """
    if given := given_secret():
        return given
    host, _ = split(process.coordinator_address)
    reason = f"the workers meet at {host}"
    if is_loopback(host):
        try:
            return secret_of_this_machine()
        except ClusterSpecError as error:
            reason = str(error)
    if not process.process_id:
        logger.warning(
            "This cluster has no secret (%s): whoever reaches the chief first can take a worker's "
            "place. %s",
            reason,
            HOW_TO,
        )
    return None


def _bind_address(address: str) -> str | None:
    """Where the chief's service of JAX listens; None for all interfaces, as JAX does."""
    host, port = split(address)
    interface = interface_of(host)
    if not interface:
        return None
    return f"[{interface}]:{port}" if ":" in interface else f"{interface}:{port}"


def _open(
    process: JaxProcess, announce: Announce, seconds: float | None, secret: Secret | None
) -> ClusterChannel:
    address, size, index = process
    limits = replace(Limits.from_environ(), joining=seconds or _SECONDS_TO_JOIN)
    host, first = split(address)
    second = second_port()
    if second == first:
        raise ClusterSpecError(
            f"{RX_SECOND_PORT}={second} is the port of the chief's address {address}, which JAX's "
            f"service has. Set {RX_SECOND_PORT} to another port."
        )
    return open_channel(
        index, size, host=host, announce=announce, limits=limits, secret=secret, port=second
    )


def _at_address(
    process: JaxProcess, seconds: float | None, cluster: str, secret: Secret | None
) -> Announce:
    """The chief's endpoint, told at the address that the cluster's description gives."""
    address, size, index = process
    limit = seconds or _SECONDS_TO_JOIN
    return functools.partial(
        meet, address, index, size, seconds=limit, cluster=cluster, secret=secret
    )


@contextmanager
def _by_devices(
    endpoint: dict[str, Any] | None, on_leaving: Callable[[int], None] | None = None
) -> Generator[dict[str, Any], None, None]:
    """The chief's endpoint, by way of the devices, where JAX has taken the address already."""
    del on_leaving  # there is no connection yet
    text = json.dumps(endpoint or {}).encode().ljust(_ENDPOINT_BYTES)
    sent = multihost_utils.broadcast_one_to_all(np.frombuffer(text, np.uint8))
    yield json.loads(np.asarray(sent).tobytes())


def _check_same(process: JaxProcess) -> None:
    found = (jax.process_count(), jax.process_index())
    if found != process[1:]:
        raise ClusterError(
            f"Worker {process.process_id} of {process.num_processes} has joined another cluster "
            f"before: JAX is process {found[1]} of {found[0]}. Describe one cluster, or leave the "
            "joining to the strategy."
        )
