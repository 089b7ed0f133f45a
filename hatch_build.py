"""What a build does beside packing files: it writes the stubs of `replicax.tf`."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class CustomBuildHook(BuildHookInterface):
    """Runs before hatchling collects the files of a wheel, or of an editable install."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        runpy.run_path(str(Path(self.root) / "scripts" / "stubs.py"))["write"]()
