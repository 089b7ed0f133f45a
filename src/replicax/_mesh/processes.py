"""Joins the processes of a cluster: JAX's distributed runtime, and the channel between workers.

`cluster_resolver` describes the cluster. JAX can join one cluster, before its first use.
"""

from __future__ import annotations

import hmac
import json
import logging
import secrets
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from jax.experimental import multihost_utils

from replicax._control import ClusterChannel, Limits, open_channel, split, wait_until_open
from replicax._core.channel import agree, current, set_current
from replicax._core.env import RX_SECOND_PORT, prefer_nccl_ring, second_port
from replicax._core.errors import (
    BackendAlreadyInitialized,
    ClusterError,
    ClusterSpecError,
    ReplicaxError,
)
from replicax._core.machine.startup import begin
from replicax._core.options import CommunicationImplementation, CommunicationOptions
from replicax._cpu.tuning import agree_on_tuning
from replicax._net import (
    HOW_TO,
    Relay,
    Secret,
    given_secret,
    hold,
    interface_of,
    is_loopback,
    secret_of_this_machine,
)
from replicax._program.agreement import versions
from replicax._program.explain import is_device_error
from replicax.cluster_resolver import ClusterResolver, JaxProcess, detect

if TYPE_CHECKING:
    import socket

logger = logging.getLogger("replicax")

_SECONDS_TO_JOIN = 300.0
# Short, because all workers have said over the channel that they leave.
_SECONDS_TO_LEAVE = 20
_SECONDS_TO_OPEN = 60.0  # for the chief to start JAX's service
_ENDPOINT_BYTES = 1024


def join_from_environment() -> None:
    """Join the cluster that the environment describes, if it has several workers.

    Workers of parameter servers do not join: they do not compute together.
    """
    resolver = detect()
    if resolver is not None and "ps" in resolver.cluster_spec().jobs:
        return
    if resolver is not None and (process := resolver.jax_process()) is not None:
        join(process, cluster=resolver.cluster_name())


def start(resolver: ClusterResolver | None, options: CommunicationOptions) -> bool:
    """Join a cluster, if there is one, and compare versions and options of its workers.

    Returns whether there are several workers.
    """
    begin()
    if options.implementation is CommunicationImplementation.RING:
        prefer_nccl_ring()
    process = None if resolver is None else resolver.jax_process()
    if process is not None and resolver is not None:
        join(process, options.timeout_seconds, cluster=resolver.cluster_name())
    _warn_of_nccl_without_gpus(options)
    if process is None or process.num_processes == 1:
        return False
    current().bound(options.timeout_seconds)
    agree("set-up", {**versions(), "options": str(options)})
    agree_on_tuning()
    return True


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

    The workers connect to each other before they join JAX, because JAX ends a process whose cluster
    is not complete. They wait for `timeout` seconds, or for 300. `cluster` is its name, as of
    `ClusterResolver.cluster_name`.
    """
    if process.num_processes == 1:
        return
    limits = replace(Limits.from_environ(), joining=timeout or _SECONDS_TO_JOIN)
    port = _second_port(process.coordinator_address)
    if not jax.distributed.is_initialized():
        address, size, index = process
        secret = secret_of(process)
        with ExitStack() as held:
            ports = [0]  # on the chief, the last one is for JAX's service

            def hold_port(_own: int) -> None:
                sock = held.enter_context(_hold_port(address, port))
                ports.append(sock.getsockname()[1])

            channel = open_channel(
                index,
                size,
                address,
                limits=limits,
                cluster=cluster,
                secret=secret,
                # Later than the chief's own port, which the system might choose otherwise.
                on_listening=hold_port,
            )
            try:
                _join_jax(process, channel, ports[-1], limits.joining)
            except (ReplicaxError, RuntimeError):
                raise  # the other workers were notified
            except BaseException:  # such as Ctrl-C: free the chief's port for another try
                channel.close()
                raise
    else:  # joined by an earlier `join`, or by the program itself
        _check_same(process)
        if current().size > 1:
            return
        channel = _open_by_devices(process, port, limits)
    # Exit hooks run last first: ours, installed after JAX's, run before JAX's barrier.
    channel.install_exit_hooks(is_device_error)
    set_current(channel)


def _second_port(address: str) -> int:
    port = second_port()
    if port == split(address)[1]:
        raise ClusterSpecError(
            f"{RX_SECOND_PORT}={port} is the port of the chief's address {address}. Set "
            f"{RX_SECOND_PORT} to another port. See docs/clusters.md."
        )
    return port


def _hold_port(address: str, port: int) -> socket.socket:
    """Hold a port for JAX's service, on the chief with this address."""
    try:
        return hold(interface_of(split(address)[0]), port)
    except OSError as error:
        raise ClusterError(
            f"JAX's service cannot listen at port {port}, set by {RX_SECOND_PORT}: "
            f"{error.strerror}. End the program that uses the port, set another one, or unset the "
            "variable to let the system choose one."
        ) from error


def _join_jax(process: JaxProcess, channel: ClusterChannel, port: int, seconds: float) -> None:
    """Join JAX's runtime, whose service has this `port` on the chief."""
    # JAX's preemption service catches SIGTERM, which would no longer end the process.
    jax.config.update("jax_enable_preemption_service", False)
    host, _ = split(process.coordinator_address)
    port = int(channel.from_chief("port of JAX's service", str(port).encode()))
    address = _host_and_port(host, port)
    if process.process_id:
        patience = min(seconds, _SECONDS_TO_OPEN)
        if not wait_until_open((host, port), patience):
            error = ClusterError(
                f"Worker {process.process_id} cannot reach JAX's service at {address}, the chief's "
                f"second port, within {patience:.0f} s. Set the chief's {RX_SECOND_PORT} to a port "
                "that the firewall lets pass. See docs/clusters.md."
            )
            channel.fail(str(error))
            raise error
        address = Relay((host, port)).address
    interface = interface_of(host)  # None for all
    try:
        jax.distributed.initialize(
            address,
            process.num_processes,
            process.process_id,
            coordinator_bind_address=_host_and_port(interface, port) if interface else None,
            shutdown_timeout_seconds=_SECONDS_TO_LEAVE,
        )
    except RuntimeError as error:
        channel.explain(error)  # ends this process if the chief has died
        channel.fail(str(error))
        if "before" not in str(error):
            raise
        raise BackendAlreadyInitialized(
            "JAX was used before this process could join its cluster. Create the strategy at the "
            "top of the program, or start it with `replicax run train.py`, which joins the "
            "cluster before your code runs."
        ) from error


def _host_and_port(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


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


def _open_by_devices(process: JaxProcess, port: int, limits: Limits) -> ClusterChannel:
    """Open the channel if the program has joined JAX, whose service has the chief's address.

    A collective sends the port of the channel, and a token that makes its secret unique.
    """
    address, size, index = process
    host, _ = split(address)
    secret = secret_of(process)
    token = secrets.token_hex(32)
    if index:
        port, token = _from_chief_by_devices(None)
    return open_channel(
        index,
        size,
        _host_and_port(host, port),
        limits=limits,
        secret=_secret_of_run(secret, token),
        on_listening=lambda port: _from_chief_by_devices([port, token]),  # on the chief
    )


def _from_chief_by_devices(endpoint: Any) -> Any:
    text = json.dumps(endpoint).encode().ljust(_ENDPOINT_BYTES)
    sent = multihost_utils.broadcast_one_to_all(np.frombuffer(text, np.uint8))
    return json.loads(np.asarray(sent).tobytes())


def _secret_of_run(secret: Secret | None, token: str) -> Secret:
    """The secret of one run, made of the cluster's secret and a token."""
    value = hmac.digest(secret.value if secret else b"", token.encode(), "sha256")
    return Secret(value, secret.source if secret else "its run")


def _check_same(process: JaxProcess) -> None:
    found = (jax.process_count(), jax.process_index())
    if found != process[1:]:
        raise ClusterError(
            f"Worker {process.process_id} of {process.num_processes} has joined another cluster "
            f"before: in JAX it is process {found[1]} of {found[0]}. Describe one cluster only, or "
            "let the strategy join it."
        )
