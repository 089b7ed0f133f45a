"""How a lookup layer is made, and saved with its vocabulary."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np

from replicax._core.errors import UsageError
from replicax.layers._texts import check_mode
from replicax.layers._vocabulary import Learnt, Vocabulary

_FILE = "vocabulary.json"


class Saving:
    """Methods of a layer with a vocabulary."""

    vocabulary: Vocabulary
    vocabulary_dtype: str
    output_mode: str
    token_weights: np.ndarray | None
    set_vocabulary: Any

    def set_up(self, arguments: dict[str, Any]) -> None:
        """Take the arguments that lookup layers share.

        Raises:
            UsageError: If they do not fit together.
        """
        given = dict(arguments)
        vocabulary, sparse = given.pop("vocabulary"), given.pop("sparse")
        idf_weights, mode = given.pop("idf_weights"), given.pop("output_mode")
        vars(self).update(given)
        self.output_mode = check_mode(mode, sparse, invert=self.invert)
        if (self.max_tokens or 2) <= 1 or (self.pad_to_max_tokens and self.max_tokens is None):
            raise UsageError(
                "`max_tokens` counts all tokens, also those for unknown and masked ones. Received: "
                f"max_tokens={self.max_tokens}, pad_to_max_tokens={self.pad_to_max_tokens}. There "
                "would be no room for a vocabulary. Use a larger number."
            )
        masks = int(self.mask_token is not None and self.output_mode == "int")
        self.vocabulary = Vocabulary(
            [*[self.mask_token] * masks, *[self.oov_token] * self.num_oov_indices],
            masks,
            mask_token=None if self.invert else self.mask_token,
            masked=0 if masks else -1,
            oov_token=self.oov_token,
            integers=self.vocabulary_dtype != "string",
        )
        self.learnt, self.token_weights = Learnt(), None
        self.is_given = vocabulary is not None
        # What is in a file is saved as what is learnt is: beside the configuration.
        in_file = isinstance(vocabulary, str | os.PathLike)
        self.given = None if vocabulary is None or in_file else self.as_tokens(vocabulary)
        self.given_weights = None if idf_weights is None else np.asarray(idf_weights).tolist()
        if vocabulary is not None:
            self.set_vocabulary(vocabulary, idf_weights)

    @property
    def compute_dtype(self) -> str:
        """What the inputs are."""
        return self.vocabulary_dtype

    @property
    def variable_dtype(self) -> str:
        """What the inputs are."""
        return self.vocabulary_dtype

    def build(self, input_shape: Any = None) -> None:
        """There is nothing to make."""
        self.built = True

    def get_config(self) -> dict[str, Any]:
        """What the layer is made of; a vocabulary that was learnt is saved beside it."""
        base: dict[str, Any] = super().get_config()  # pyright: ignore[reportAttributeAccessIssue]
        return {
            **base,
            "max_tokens": self.max_tokens,
            "num_oov_indices": self.num_oov_indices,
            "mask_token": self.mask_token,
            "oov_token": self.oov_token,
            "vocabulary": self.given,
            "idf_weights": self.given_weights,
            "invert": self.invert,
            "output_mode": self.output_mode,
            "pad_to_max_tokens": self.pad_to_max_tokens,
        }

    def save_assets(self, dir_path: str) -> None:
        """Save a vocabulary that was learnt, or read from a file."""
        if self.given is None:
            Path(dir_path, _FILE).write_text(json.dumps(self.vocabulary.tokens), encoding="utf-8")

    def load_assets(self, dir_path: str) -> None:
        """Load what was saved."""
        if self.given is None:
            self.vocabulary.fill(json.loads(Path(dir_path, _FILE).read_text(encoding="utf-8")))

    def save_own_variables(self, store: Any) -> None:
        """Save how much each token counts."""
        if self.token_weights is not None:
            store["idf_weights"] = self.token_weights

    def load_own_variables(self, store: Any) -> None:
        """Load what was saved."""
        if self.output_mode == "tf_idf" and "idf_weights" in store:
            self.token_weights = np.asarray(store["idf_weights"][()])
