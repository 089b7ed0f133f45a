"""What a build does beside packing files: stubs of `replicax.tf`, and kernels in C for CPUs."""

from __future__ import annotations

import runpy
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from packaging.requirements import Requirement


class CustomBuildHook(BuildHookInterface):
    """Runs before hatchling collects the files of a wheel, or of an editable install."""

    def dependencies(self) -> list[str]:
        """Where there is a C compiler, jaxlib: it brings the C headers of XLA."""
        if not self._script("kernels")["compiler"]():
            return []
        named = map(Requirement, self.metadata.core.dependencies)
        return [f"jaxlib{one.specifier}" for one in named if one.name == "jax"]

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        self._script("stubs")["write"]()
        if why := self._script("kernels")["build"]():
            self.app.display_warning(f"CPU kernels are left out: {why}")
        if any(Path(self.root).glob("src/replicax/_cpu/built/*.so")):
            platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
            build_data.update(pure_python=False, tag=f"py3-none-{platform}")

    def _script(self, name: str) -> dict[str, Any]:
        return runpy.run_path(str(Path(self.root) / "scripts" / f"{name}.py"))
