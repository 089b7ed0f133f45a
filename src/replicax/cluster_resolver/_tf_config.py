"""`TF_CONFIG` as data: `TFConfig`, read from JSON, checked, and written again.

An error shows the part that is wrong, the whole text, and an example that works.
`_tf_config_resolver.py` decides when it is read.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import cast, final

from replicax._core.errors import ClusterSpecError
from replicax.cluster_resolver._roles import check_alone
from replicax.cluster_resolver._spec import Cluster, ClusterSpec, Task

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
