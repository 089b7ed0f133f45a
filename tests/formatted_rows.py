"""A stand-in for Hugging Face's `datasets.Dataset`: rows, and the formats of its interface."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Feature:
    """The type of a column."""

    dtype: str


@dataclass(frozen=True)
class Rows:
    """Columns of numbers, as lists; the NumPy format makes int64 and float32 of them, as there."""

    columns: dict[str, list[Any]]
    features: dict[str, Feature]
    kind: str | None = None
    chosen: tuple[str, ...] | None = None
    output_all_columns: bool = False
    format_kwargs: tuple[tuple[str, Any], ...] = ()

    @property
    def format(self) -> dict[str, Any]:
        return {
            "type": self.kind,
            "format_kwargs": dict(self.format_kwargs),
            "columns": list(self.columns if self.chosen is None else self.chosen),
            "output_all_columns": self.output_all_columns,
        }

    def with_format(self, type=None, columns=None, output_all_columns=False, **kwargs) -> Rows:
        chosen = None if columns is None else tuple(columns)
        return replace(
            self,
            kind=type,
            chosen=chosen,
            output_all_columns=output_all_columns,
            format_kwargs=tuple(kwargs.items()),
        )

    def with_transform(self, transform, columns=None) -> Rows:
        return self.with_format("custom", columns, transform=transform)

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    def __iter__(self):
        for number in range(len(self)):
            yield {name: column[0] for name, column in self[[number]].items()}

    def __getitem__(self, numbers: list[int]) -> dict[str, Any]:
        names = self.columns if self.chosen is None else self.chosen
        batch = {name: [self.columns[name][n] for n in numbers] for name in names}
        options = dict(self.format_kwargs)
        if self.kind == "custom":
            return options["transform"](batch)
        if self.kind == "numpy":
            batch = {name: _as_numpy(column, **options) for name, column in batch.items()}
        if self.output_all_columns:
            others = [name for name in self.columns if name not in names]
            batch |= {name: [self.columns[name][n] for n in numbers] for name in others}
        return batch


def _as_numpy(column: list[Any], dtype: Any = None) -> np.ndarray:
    array = np.asarray(column)
    return array.astype(dtype or {"i": np.int64, "f": np.float32}[array.dtype.kind])


def some_rows() -> Rows:
    """Three rows of a small integer, a time in seconds and a vector."""
    return Rows(
        {"n": [1, 2, 3], "t": [1.7e9, 1.7e9 + 1, 1.7e9 + 2], "x": [[1.0, 2.0]] * 3},
        {"n": Feature("int8"), "t": Feature("float64"), "x": Feature("float32")},
    )
