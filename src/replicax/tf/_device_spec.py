"""`tf.DeviceSpec`: the parts of a device's name."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Any, Self, final

from replicax._core.errors import UsageError

_PART = re.compile(
    r"job:(?P<job>[\w.-]+)|replica:(?P<replica>\d+)|task:(?P<task>\d+)"
    r"|(?:device:|(?=(?i:[cgt]pu)\b))(?P<device_type>[A-Za-z_]+)(?::(?P<device_index>\d+|\*))?"
)


@final
@dataclass(frozen=True)
class DeviceSpec:
    """The parts of a device's name; `tf.device` and strategies take it like the name.

    Example:
        >>> import replicax.tf as tf
        >>> spec = tf.DeviceSpec.from_string("/job:worker/task:1/gpu:0")
        >>> spec.replace(task=2).to_string(), spec.device_type
        ('/job:worker/task:2/device:GPU:0', 'GPU')
    """

    job: str | None = None
    replica: int | None = None
    task: int | None = None
    device_type: str | None = None
    device_index: int | None = None

    def __post_init__(self) -> None:
        if self.device_type is not None:
            object.__setattr__(self, "device_type", self.device_type.upper())

    @classmethod
    def from_string(cls, spec: str) -> Self:
        """The parts of a name.

        Raises:
            UsageError: If it is none.
        """
        found: dict[str, str] = {}
        for part in filter(None, spec.split("/")):
            match = _PART.fullmatch(part)
            if match is None:
                raise UsageError(
                    f"Cannot read device {spec!r}: {part!r} is not a part of a name such as "
                    "'/job:worker/task:0/device:GPU:1'."
                )
            found |= {name: value for name, value in match.groupdict().items() if value}
        texts = ("job", "device_type")
        return cls(**{k: v if k in texts else int(v) for k, v in found.items() if v != "*"})  # pyright: ignore[reportArgumentType]

    parse_from_string = from_string

    def to_string(self) -> str:
        """The name."""
        named = (("job", self.job), ("replica", self.replica), ("task", self.task))
        text = "".join(f"/{name}:{value}" for name, value in named if value is not None)
        if self.device_type is None:
            return text
        index = "*" if self.device_index is None else self.device_index
        return f"{text}/device:{self.device_type}:{index}"

    __str__ = to_string

    def make_merged_spec(self, dev: DeviceSpec) -> DeviceSpec:
        """These parts, with those that the other one has in their places."""
        return replace(self, **{k: v for k, v in vars(dev).items() if v is not None})

    def replace(self, **kwargs: Any) -> DeviceSpec:
        """These parts, with others in their places."""
        return replace(self, **kwargs)
