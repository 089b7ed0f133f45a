"""`tf.saved_model`: the options of saving and loading; the work is in `_function/exporting.py`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from replicax._core.errors import UsageError

SERVING = "serve"


@dataclass
class SaveOptions:
    """Options of `save`; none of them changes anything here."""

    namespace_whitelist: Any = None
    save_debug_info: bool = False
    function_aliases: Any = None
    experimental_debug_stripper: bool = False
    experimental_io_device: str | None = None
    experimental_variable_policy: Any = None
    experimental_custom_gradients: bool = True
    experimental_image_format: bool = False
    experimental_skip_saver: bool = False
    experimental_sharding_callback: Any = None
    extra_tags: Any = None


@dataclass
class LoadOptions:
    """Options of `load`; none of them changes anything here.

    Raises:
        UsageError: If one asks that variables do not get what was saved.
    """

    allow_partial_checkpoint: bool = False
    experimental_io_device: str | None = None
    experimental_skip_checkpoint: bool = False
    experimental_variable_policy: Any = None
    experimental_load_function_aliases: bool = False

    def __post_init__(self) -> None:
        if self.allow_partial_checkpoint or self.experimental_skip_checkpoint:
            raise UsageError(
                "Cannot load a part of a saved model, got "
                f"allow_partial_checkpoint={self.allow_partial_checkpoint}, "
                f"experimental_skip_checkpoint={self.experimental_skip_checkpoint}. Leave both "
                "out, and assign other values to `loaded.variables` afterwards."
            )
