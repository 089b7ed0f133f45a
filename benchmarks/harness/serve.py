"""What a process of a side does: it works when it is told to, until nobody is there to tell."""

from __future__ import annotations

import json
import os
import socket
import time
import traceback
from typing import Any

from .processes import ADDRESS
from .sides import SIDES
from .training import Plan, Training
from .workloads import EVERY


def serve(told: str) -> None:
    """Connect, and answer orders; an error is an answer, too."""
    plan = Plan(**json.loads(told))
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(os.environ[ADDRESS])
        stream = connection.makefile("rw")
        worker = Worker(plan)
        for line in stream:
            try:
                answer = worker.answer(**json.loads(line))
            except Exception as error:
                traceback.print_exc()
                (text, *_) = traceback.format_exception_only(error)
                answer = {"error": text.strip().partition("\n")[0]}
            print(json.dumps(answer), file=stream, flush=True)


class Worker:
    """Holds the side and its trainings.

    Args:
        plan: What it was told.
    """

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._side: Any = None
        self._trainings: dict[str, Training] = {}

    def answer(self, do: str, path: str) -> dict[str, Any]:
        """The time it took, and what came out."""
        start = time.perf_counter()
        if do == "first":
            self._trainings[path] = self._make(path)
        training = self._trainings[path]
        before = 0 if do == "first" else training.updates()
        begin = time.perf_counter()
        value = {
            "first": training.first,
            "check": training.check,
            "round": training.epoch,
            "cost": training.cost,
        }[do]()
        end = time.perf_counter()
        return {
            "value": value,
            "seconds": end - (start if do == "first" else begin),
            "updates": training.updates() - before,
        }

    def _make(self, path: str) -> Training:
        if self._side is None:
            plan = self._plan
            workload = EVERY[plan.workload].smaller(plan.steps, plan.batch_size)
            _ = workload.batches  # drawn before anything is timed
            self._side = SIDES[plan.side](plan, workload)
        return self._side.training(path)
