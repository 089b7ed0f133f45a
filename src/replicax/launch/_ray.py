"""`--ray`: workers as actors of a Ray cluster, in a placement group of their own.

An actor is to its worker what `ssh` is with `--hosts`: it runs the far end, `_remote.py`, brings it
the order and the signals, and brings back what it prints and how it ends.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import cycle
from pathlib import Path
from textwrap import shorten
from threading import Thread
from typing import IO, TYPE_CHECKING, Any, NamedTuple

from replicax._core.env import JAX_PLATFORMS, RX_PROCESSES_HERE
from replicax._core.errors import ClusterError
from replicax._processes.child import RX_RESTART, ProcessPlan
from replicax._processes.output import ERR, OUT, Sink
from replicax._processes.ray_connection import SECONDS_TO_GROW, connect, lacking
from replicax._processes.supervisor import say, wait
from replicax.cluster_resolver import Task
from replicax.launch._function import content, put
from replicax.launch._plan import CALLED, JOBS, Program, Surroundings
from replicax.launch._ports import free_ports
from replicax.launch._remote import Order, digest_of
from replicax.launch._ssh import BOOT, ROOT

if TYPE_CHECKING:
    from replicax._processes.rules import Signals

_RETURNCODE = 0  # in place of the number of a stream
_READ = 1 << 16
_STREAMING = {"num_returns": "streaming", "_generator_backpressure_num_objects": 64}
_LOST = 255  # ssh's exit code when its connection breaks
_JOB = "RAY_JOB_CONFIG_JSON_ENV_VAR"
_BETWEEN_LOOKS = 0.2
_MOST_CHARACTERS = 400  # of Ray's message, which ends with general advice
_SECONDS_BEFORE_FEWER = 10.0
_SECONDS_TO_DIE = 5.0


class Place(NamedTuple):
    """Where a worker will run: its machine, its port, its folder, and our files there."""

    ip: str
    port: int
    folder: str
    called: str
    descriptors: tuple[int, ...]


class FarEnd:
    def __init__(self, call: bytes) -> None:
        self._held = ExitStack()  # until this process ends
        self._files: list[IO[bytes]] = []
        self._process: Any = None
        if call:
            # The call, and its future result.
            self._files = [tempfile.TemporaryFile(), tempfile.TemporaryFile()]  # noqa: SIM115
            self._files[0].write(call)
            self._files[0].flush()

    def place(self) -> Place:
        """Where it is, with a port that is held for its worker."""
        import ray

        util: Any = ray.util
        (port,) = self._held.enter_context(free_ports(1))
        numbers = tuple(file.fileno() for file in self._files)
        return Place(util.get_node_ip_address(), port, str(Path.cwd()), CALLED, numbers)

    def start(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", BOOT, ROOT],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            pass_fds=[file.fileno() for file in self._files],
            bufsize=0,
        )

    def listen(self, _started: None) -> Generator[tuple[int, Any]]:
        """Yield its output, by stream, and at last its exit code."""
        process = self._process
        streams = {process.stdout.fileno(): OUT, process.stderr.fileno(): ERR}
        with process:
            while streams:
                for descriptor in wait(list(streams), None, 1.0):
                    if data := os.read(descriptor, _READ):
                        yield streams[descriptor], data
                    else:
                        del streams[descriptor]
            yield _RETURNCODE, process.wait()

    def tell(self, line: bytes) -> None:
        with suppress(OSError, ValueError):  # it has ended
            self._process.stdin.write(line)

    def kill(self) -> None:
        """End it at once; its worker ends with it."""
        self._process.kill()

    def result(self) -> bytes:
        """The result of the function, as `_function.py` wrote it."""
        return content(self._files[1].fileno())


class FarProcess:
    """A far end in the place of a process here: what a `Worker` asks of its `Popen`.

    One thread brings what it prints into pipes, another one takes orders out of a pipe.
    """

    pid = None

    def __init__(self, actor: Any, name: str, asked: Mapping[str, float]) -> None:
        self.returncode: int | None = None
        self.is_lost = False  # for good: its actor has died, and its address with it
        self._actor, self._name, self._asked = actor, name, asked
        (out, to_out), (err, to_err), (orders, to_orders) = os.pipe(), os.pipe(), os.pipe()
        self.stdout, self.stderr = os.fdopen(out, "rb", 0), os.fdopen(err, "rb", 0)
        self.stdin = os.fdopen(to_orders, "wb", 0)
        os.set_blocking(to_orders, False)
        started, streams = actor.start.remote(), {OUT: to_out, ERR: to_err}
        Thread(target=self._listen, args=(started, streams), daemon=True).start()
        Thread(target=self._speak, args=(started, orders), daemon=True).start()

    def poll(self) -> int | None:
        return self.returncode

    wait = poll  # none of it is here

    def kill(self) -> None:
        """End it at once, also if its machine does not answer."""
        if self.returncode is None:
            killed = self._actor.kill.remote()
            Thread(target=self._give_up, args=(killed,), daemon=True).start()

    def _give_up(self, killed: Any) -> None:
        import ray

        client: Any = ray  # without types of these results
        with suppress(Exception):  # `_listen` tells of errors
            if not client.wait([killed], timeout=_SECONDS_TO_DIE)[0]:
                client.kill(self._actor)

    def _listen(self, started: Any, streams: dict[int, int]) -> None:
        import ray
        from ray.exceptions import ActorDiedError

        returncode, listen = _LOST, self._actor.listen
        try:
            for answer in listen.options(**_STREAMING).remote(started):
                kind, content = ray.get(answer)
                if kind == _RETURNCODE:
                    returncode = content
                else:
                    _write(streams[kind], content)
        except OSError:  # nobody reads any more
            pass
        except Exception as error:  # Ray's, if its machine or its actor is gone
            words = f"Ray has lost {self._name}: {shorten(str(error), _MOST_CHARACTERS)}"
            self.is_lost = isinstance(error, ActorDiedError)
            with suppress(Exception):  # Ray itself may be gone, too
                if self.is_lost:
                    words = f"{words.rstrip('. ')}. Ray was {lacking([self._asked])}."
            with suppress(OSError):
                _write(streams[ERR], f"{words}\n".encode())
        self.returncode = returncode
        for writing in streams.values():
            os.close(writing)

    def _speak(self, started: Any, orders: int) -> None:
        import ray

        with suppress(Exception), os.fdopen(orders, "rb", 0) as lines:  # `_listen` tells of errors
            ray.get(started)
            while line := lines.read(_READ):
                ray.get(self._actor.tell.remote(line))


def _write(descriptor: int, data: bytes) -> None:
    while data:
        data = data[os.write(descriptor, data) :]


@dataclass(frozen=True)
class Bundles:
    """The resources of each worker, the least number of workers, and their placement."""

    cpus: float = 1
    gpus: float = 0
    least: int | None = None
    pack: bool = False


class RayWorkers:
    """The tasks of a Ray cluster, placed anew for each attempt.

    Actors have files like those of a function's call and results in the program's `descriptors`.
    """

    def __init__(
        self,
        address: str,
        program: Program,
        counts: Mapping[str, int],
        bundles: Bundles,
        surroundings: Surroundings,
        *,
        sink: Sink,
        signals: Signals,
        patience: float | None = None,
    ) -> None:
        self._program, self._counts, self._bundles = program, counts, bundles
        self._surroundings, self._sink, self._signals = surroundings, sink, signals
        self._call = content(program.descriptors[0]) if program.descriptors else b""
        self._patience = SECONDS_TO_GROW if patience is None else patience
        # A job has a folder of its own, which Ray refuses to replace.
        travels = not self._call and _JOB not in os.environ
        connect(address, {"working_dir": str(Path.cwd())} if travels else {})

    @contextmanager
    def cluster(self, restart: int) -> Generator[list[ProcessPlan]]:
        """Wait for the cores and GPUs, and plan a worker for each place."""
        import ray
        from ray.util.placement_group import remove_placement_group

        group, tasks, actors, places = self._placed()
        if group is None:  # a signal has come
            yield []
            return
        try:
            plans = self._plans(tasks, places, restart)
            yield [
                replace(plan, start=partial(FarProcess, actor, f"{task} on {place.ip}", asked))
                for plan, task, actor, place in zip(plans, tasks, actors, places, strict=True)
                for asked in [self._resources(task)]
            ]
            if self._call and not self._signals.received:
                with suppress(Exception):  # then one has failed, and nobody asks for results
                    chosen = actors[:1] if "chief" in self._counts else actors
                    results: list[bytes] = ray.get([actor.result.remote() for actor in chosen])
                    files = self._program.descriptors[1:]
                    for index, descriptor in enumerate(files):  # some may not have run
                        put(descriptor, results[index] if index < len(results) else b"")
        finally:
            remove_placement_group(group)

    def _placed(self) -> tuple[Any, list[Task], list[Any], list[Place]]:
        """The group, and the actors with their places; again if a machine is lost meanwhile."""
        import ray
        from ray.exceptions import RayActorError
        from ray.util.placement_group import remove_placement_group

        while True:
            alive = _machines()
            group, tasks = self._placement()
            if group is None:
                return None, [], [], []
            try:
                actors = [self._actor(group, index, task) for index, task in enumerate(tasks)]
                return group, tasks, actors, ray.get([actor.place.remote() for actor in actors])
            except BaseException as error:
                remove_placement_group(group)
                if not isinstance(error, RayActorError) or alive <= _machines():
                    raise
                self._say("Ray has lost a machine; placing the workers again")

    def _placement(self) -> tuple[Any, list[Task]]:
        """Reserve what all tasks need, or with fewer workers what there is."""
        from ray.util.placement_group import placement_group, remove_placement_group

        most, began, is_told = self._counts["worker"], time.monotonic(), False
        least = self._bundles.least or most
        for workers in cycle(range(most, least - 1, -1)):
            tasks = _tasks({**self._counts, "worker": workers})
            wanted = [self._resources(task) for task in tasks]
            group = placement_group(wanted, strategy="PACK" if self._bundles.pack else "SPREAD")
            give_up = time.monotonic() + (_SECONDS_BEFORE_FEWER if workers == most else 1.0)
            while time.monotonic() < give_up and not self._signals.received:
                if group.wait(_BETWEEN_LOOKS):
                    if workers < most:
                        self._say(f"Ray has room for {workers} workers of {most}")
                    return group, tasks
            remove_placement_group(group)
            if self._signals.received:
                break
            if workers == most and not is_told:
                is_told = True
                self._say(f"waiting for Ray, {lacking(wanted)}")
            if time.monotonic() - began > self._patience:
                raise ClusterError(
                    f"Ray had no room for all workers in {self._patience:g} seconds: "
                    f"{lacking(wanted)}. See `ray status`; start more machines, or ask for less."
                )
        return None, []

    def _say(self, text: str) -> None:
        say(self._sink, text)
        self._sink.push()

    def _resources(self, task: Task) -> dict[str, float]:
        if task.job != "worker":
            return {"CPU": 1}
        gpus = {"GPU": self._bundles.gpus} if self._bundles.gpus else {}
        return {"CPU": self._bundles.cpus, **gpus}

    def _actor(self, group: Any, index: int, task: Task) -> Any:
        import ray
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        asked = self._resources(task)
        remote: Any = ray.remote(FarEnd)
        return remote.options(
            num_cpus=asked["CPU"],
            num_gpus=asked.get("GPU", 0),
            max_concurrency=4,
            scheduling_strategy=PlacementGroupSchedulingStrategy(group, index),
        ).remote(self._call)

    def _plans(
        self, tasks: Sequence[Task], places: Sequence[Place], restart: int
    ) -> list[ProcessPlan]:
        jobs: dict[str, list[str]] = {}
        for task, place in zip(tasks, places, strict=True):
            jobs.setdefault(task.job, []).append(f"{place.ip}:{place.port}")
        on, digest = Counter(place.ip for place in places), digest_of(self._program)
        plans: list[ProcessPlan] = []
        for task, place in zip(tasks, places, strict=True):
            on_cpu = {} if "GPU" in self._resources(task) else {JAX_PLATFORMS: "cpu"}
            own = {**on_cpu, RX_PROCESSES_HERE: str(on[place.ip]), **self._surroundings.extra}
            program = self._program
            if self._call:
                call, result = place.descriptors
                program = replace(
                    program,
                    target=place.called,
                    args=(str(call), *[str(result)] * len(tasks)),
                    descriptors=place.descriptors,
                )
            order = Order(
                place.folder,
                program,
                digest,
                jobs,
                [(task.job, task.index)],
                self._surroundings.devices_per_worker,
                own,
                restart,
                place=0,
            )
            host = place.ip if len(on) > 1 else ""
            plans.append(ProcessPlan(task, (), {RX_RESTART: str(restart)}, host=host, order=order))
        return plans


def _machines() -> set[str]:
    import ray

    client: Any = ray
    return {node["NodeID"] for node in client.nodes() if node["Alive"]}


def _tasks(counts: Mapping[str, int]) -> list[Task]:
    return [Task(job, index) for job in JOBS for index in range(counts.get(job, 0))]
