"""`TF_CONFIG` as data, its resolver, and SageMaker's, which reads JSON of variables, too."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import cast, final

from replicax._core.errors import ClusterSpecError
from replicax.cluster_resolver._base import ClusterResolver, number_of, task_of, text_of
from replicax.cluster_resolver._spec import Cluster, ClusterSpec, Task, check_alone

TF_CONFIG = "TF_CONFIG"

_EXAMPLE = (
    """TF_CONFIG='{"cluster": {"worker": ["host0:2222", "host1:2222"]}, """
    """"task": {"type": "worker", "index": 0}}'"""
)
_SHOWN = 300  # characters of the text in a message
_AROUND = 25  # characters on each side of a place in it


@final
@dataclass(frozen=True)
class TFConfig:
    """The contents of `TF_CONFIG`: the cluster, and the task of this process.

    Args:
        spec: The cluster; an empty one if the process is alone.
        task: This process, or None if it does not say.
        rpc_layer: The protocol of `master()`.
        session_master: The answer of `master()`, whatever the rest says.

    Raises:
        ClusterSpecError: If the cluster has no such task, or two chiefs.

    Example:
        >>> from replicax.cluster_resolver import ClusterSpec, Task, TFConfig
        >>> spec = ClusterSpec({"worker": ["host0:2222", "host1:2222"]})
        >>> text = TFConfig(spec, Task("worker", 1)).to_json()
        >>> text
        '{"cluster": {"worker": ["host0:2222", "host1:2222"]},
          "task": {"type": "worker", "index": 1}}'
        >>> TFConfig.from_json(text).task
        Task(job='worker', index=1)
    """

    spec: ClusterSpec
    task: Task | None = None
    rpc_layer: str | None = None
    session_master: str | None = None

    def __post_init__(self) -> None:
        check_alone(self.spec)
        # The evaluator may be left out of the cluster that it evaluates.
        if self.spec and self.task and self.task != Task("evaluator", 0):
            self.spec.task_address(self.task.job, self.task.index)

    @classmethod
    def from_json(cls, text: str) -> TFConfig:
        """Read the text of `TF_CONFIG`; an empty text means the same as `{}`.

        Raises:
            ClusterSpecError: If it is no JSON, has other parts than it should, or describes a
                cluster or a task that cannot be.
        """
        try:
            content = _read_json(text if text.strip() else "{}")
            cluster = content.get("cluster", {})
            return cls(
                ClusterSpec(cast("Cluster", cluster)),
                _read_task(content["task"]) if "task" in content else None,
                _read_text(content, "rpc_layer"),
                _read_text(content, "session_master"),
            )
        except ClusterSpecError as error:
            shown = text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
            raise ClusterSpecError(
                f"{error} It was read from TF_CONFIG='{shown}'. One that works: {_EXAMPLE}."
            ) from None

    def to_json(self) -> str:
        """The text of `TF_CONFIG`."""
        content: dict[str, object] = {"cluster": self.spec.as_dict()} if self.spec else {}
        if self.task:
            content["task"] = {"type": self.task.job, "index": self.task.index}
        more = {"rpc_layer": self.rpc_layer, "session_master": self.session_master}
        content |= {key: value for key, value in more.items() if value is not None}
        return json.dumps(content)


def _read_json(text: str) -> Mapping[str, object]:
    try:
        content = json.loads(text, object_pairs_hook=_without_repetition)
    except json.JSONDecodeError as error:
        place = error.pos
        before, after = text[max(0, place - _AROUND) : place], text[place : place + _AROUND]
        raise ClusterSpecError(
            f"TF_CONFIG is no JSON: {error.msg}, at character {place}: {before}▶{after}. Use "
            "double quotes around texts and no comma after the last one; in a shell, put single "
            "quotes around the whole."
        ) from None
    if not isinstance(content, dict):
        raise ClusterSpecError.of(
            "TF_CONFIG", "a JSON object {…} with the keys cluster and task", content
        )
    return cast("dict[str, object]", content)


def _without_repetition(pairs: Sequence[tuple[str, object]]) -> dict[str, object]:
    """A JSON object; an entry that would silently replace an earlier one is refused."""
    keys = [key for key, _ in pairs]
    repeated = sorted({key for key in keys if keys.count(key) > 1})
    if repeated:
        raise ClusterSpecError(
            f"The key {repeated[0]!r} is in TF_CONFIG twice. Join the two, or remove one."
        )
    return dict(pairs)


def _read_task(task: object) -> Task:
    if not isinstance(task, dict) or not {"type", "index"} <= set(cast("dict[str, object]", task)):
        raise ClusterSpecError(
            f"The task in TF_CONFIG needs a type and an index, got {json.dumps(task)}. "
            'Write "task": {"type": "worker", "index": 0}.'
        )
    entries = cast("dict[str, object]", task)
    return Task(_read_type(entries["type"]), _read_index(entries["index"]))


def _read_type(job: object) -> str:
    # As in TensorFlow, the type may be a number; the job's name is text.
    if isinstance(job, bool) or not isinstance(job, str | int):
        raise ClusterSpecError(
            f"The type of the task must be the name of a job, got {json.dumps(job)}. "
            'Write "type": "worker".'
        )
    return str(job)


def _read_index(index: object) -> int:
    # As in TensorFlow, "1" is 1: templates are often filled in with text.
    whole = isinstance(index, str) and index.strip().isdecimal()
    if not whole and (isinstance(index, bool) or not isinstance(index, int) or index < 0):
        raise ClusterSpecError(
            f"The index of the task must be an integer from 0, got {json.dumps(index)}. "
            'Write "index": 0.'
        )
    return int(cast("int | str", index))


def _read_text(content: Mapping[str, object], key: str) -> str | None:
    value = content.get(key)
    if value is not None and not isinstance(value, str):
        raise ClusterSpecError(
            f'"{key}" in TF_CONFIG must be a text, got {json.dumps(value)}. '
            f'Write "{key}": "…", or leave it out.'
        )
    return value


@final
class TFConfigClusterResolver(ClusterResolver):
    """The cluster of the environment variable `TF_CONFIG`, read anew at every question.

    **Differs from TF:** every question checks all of `TF_CONFIG`. An empty variable is like none.

    Args:
        task_type: Instead of the type in `TF_CONFIG`.
        task_id: Instead of the index in `TF_CONFIG`.
        rpc_layer: Instead of the one in `TF_CONFIG`.
        environment: The value of `environment`.
        environ: The variables to read; by default `os.environ`.

    Raises:
        ClusterSpecError: At any question, if `TF_CONFIG` is wrong. The message shows where.

    Example:
        >>> from replicax.cluster_resolver import TFConfigClusterResolver
        >>> text = '{"cluster": {"worker": ["a:1", "b:1"]}, "task": {"type": "worker", "index": 1}}'
        >>> resolver = TFConfigClusterResolver(environ={"TF_CONFIG": text})
        >>> resolver.cluster_spec(), resolver.task_type, resolver.task_id
        (ClusterSpec({'worker': ['a:1', 'b:1']}), 'worker', 1)
    """

    def __init__(
        self,
        task_type: str | None = None,
        task_id: int | None = None,
        rpc_layer: str | None = None,
        environment: str | None = None,
        *,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        self._task_type = task_type
        self._task_id = task_id
        self._rpc_layer = rpc_layer
        self._environment = environment
        self._environ = environ

    def cluster_spec(self) -> ClusterSpec:
        """The cluster in `TF_CONFIG`, empty if there is none."""
        return self._read().spec

    def master(
        self,
        task_type: str | None = None,
        task_id: int | None = None,
        rpc_layer: str | None = None,
    ) -> str:
        """`session_master` if it is given; empty if the process is alone; else the address.

        Raises:
            ClusterSpecError: If nobody said which task, or the cluster has no such task.
        """
        config = self._read()
        if config.session_master is not None:
            return config.session_master
        if len(config.spec.tasks) <= 1:
            return ""
        if task_type is None or task_id is None:
            task_of(self)
        return super().master(task_type, task_id, rpc_layer)

    def _found_task(self) -> tuple[str | None, int | None]:
        task = self._read().task
        return (task.job, task.index) if task else (None, None)

    def _found_rpc_layer(self) -> str | None:
        return self._read().rpc_layer

    def _read(self) -> TFConfig:
        return TFConfig.from_json(self._variables().get(TF_CONFIG, ""))


HOSTS = "SM_HOSTS"
CURRENT_HOST = "SM_CURRENT_HOST"

_TOOLKIT = "SageMaker's training toolkit, in the container of a training job"


@final
class SageMakerClusterResolver(ClusterResolver):
    """The hosts of a SageMaker training job, each a worker, sorted by name.

    **Differs from TF:** a host that is not in the list is an error, not an empty cluster.

    Args:
        port: The port of every worker.
        task_type: Instead of `"worker"`.
        task_id: Instead of the place of this host in the list.
        rpc_layer: The protocol of `master()`.
        environment: The value of `environment`.
        environ: The variables to read; by default `os.environ`.

    Raises:
        ClusterSpecError: At any question, if this is no training job.

    Example:
        >>> from replicax.cluster_resolver import SageMakerClusterResolver
        >>> environ = {"SM_HOSTS": '["algo-1", "algo-2"]', "SM_CURRENT_HOST": "algo-2"}
        >>> resolver = SageMakerClusterResolver(environ=environ)
        >>> resolver.cluster_spec(), resolver.task_id
        (ClusterSpec({'worker': ['algo-1:2223', 'algo-2:2223']}), 1)
    """

    def __init__(
        self,
        port: int = 2223,
        task_type: str | None = None,
        task_id: int | None = None,
        rpc_layer: str | None = None,
        environment: str | None = None,
        *,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        self._port = port
        self._task_type = task_type
        self._task_id = task_id
        self._rpc_layer = rpc_layer
        self._environment = environment
        self._environ = environ

    def cluster_spec(self) -> ClusterSpec:
        """The addresses of all hosts."""
        return ClusterSpec({"worker": [f"{host}:{self._port}" for host in self._hosts()]})

    def _address(self, job: str | None, index: int | None) -> str | None:
        return None if len(self._hosts()) == 1 else super()._address(job, index)

    def _accelerators(self) -> Mapping[str, int]:
        environ = self._variables()
        gpus = number_of(environ, "SM_NUM_GPUS", set_by=_TOOLKIT) if "SM_NUM_GPUS" in environ else 0
        return {"GPU": gpus} if gpus else {}

    def _found_task(self) -> tuple[str | None, int | None]:
        hosts = self._hosts()
        here = text_of(self._variables(), CURRENT_HOST, set_by=_TOOLKIT)
        if here not in hosts:
            raise ClusterSpecError.of(
                CURRENT_HOST,
                f"one of {HOSTS}, {hosts}",
                here,
                "Leave both as SageMaker sets them, or pass task_id.",
            )
        return "worker", hosts.index(here)

    def _hosts(self) -> list[str]:
        text = text_of(self._variables(), HOSTS, set_by=_TOOLKIT)
        try:
            hosts = json.loads(text)
        except json.JSONDecodeError:
            hosts = None
        if not isinstance(hosts, list):
            raise ClusterSpecError.of(
                HOSTS,
                'a JSON list of host names, such as ["algo-1", "algo-2"]',
                text,
                "Leave it as SageMaker sets it.",
            )
        return sorted(str(host) for host in cast("list[object]", hosts))
