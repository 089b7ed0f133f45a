"""A worker of `rx.launch.run`: it calls the function that an inherited file holds.

It is run by file name, with the descriptors of the call and of each worker's result, or with
parameter servers of the chief's.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path


def main(of_call: int, of_results: list[int]) -> None:
    # Replicax is imported from around this file, installed or not. The caller's path comes with
    # the call.
    sys.path.insert(0, str(Path(__file__).parents[2]))
    from replicax.launch._function import load_call, save_result

    call = load_call(of_call)
    config = json.loads(os.environ["TF_CONFIG"])
    result = call.function(*call.args)
    if config["task"]["type"] == "chief" or "chief" not in config["cluster"]:
        rank: int = config["task"]["index"]
        save_result(of_results[rank], result)


if __name__ == "__main__":
    main(int(sys.argv[1]), [int(text) for text in sys.argv[2:]])
