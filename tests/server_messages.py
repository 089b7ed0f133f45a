"""What the tests of parameter servers send to one, without a connection."""

import itertools
from types import SimpleNamespace

import cloudpickle
import numpy as np

from replicax._net import Message, array_of, raw
from replicax._ps.server.code import digest_of
from replicax._ps.variables.shard_optimizer import Recipe

_requests = itertools.count()


class Asked:
    """A server, or what stands before one, as the coordinator and one worker see it.

    Args:
        server: What has a method `handle`.
    """

    def __init__(self, server):
        self.server = server
        self._session = SimpleNamespace(hello={}, state={})

    @staticmethod
    def message(op, head=None, buffers=()):
        return Message(op, head or {}, list(buffers))

    def ask(self, op, head=None, buffers=()):
        reply = self.server.handle(self._session, self.message(op, head, buffers))
        return SimpleNamespace(head=reply[0], buffers=reply[1])

    def change(self, op, head, buffers=()):
        return self.ask(op, {**head, "request": next(_requests)}, buffers)

    def create(self, cell, value, path="v"):
        value = np.asarray(value, "float32")
        head = {"cell": cell, "path": path, "shape": value.shape, "dtype": "float32"}
        self.change("create", {**head, "decays": True}, [raw(value)])

    def host(self, optimizer, cells, number=0):
        recipe = self.learn(Recipe.of(optimizer))
        head = {"id": number, "iterations": 0, "learning_rate": float(optimizer.learning_rate)}
        self.change("attach", {**head, "recipe": recipe, "cells": [], "constraint": None})
        head = {"id": number, "cells": [[c, 0, True] for c in cells], "constraint": None}
        self.change("attach", head)

    def learn(self, code):
        pickled = cloudpickle.dumps(code)
        self.ask("code", {}, [pickled])
        return digest_of(pickled)

    def plan(self, name="p", *, cells=(), tables=(), writes=()):
        """Agree on pushes: gradients of cells, and of rows of tables; additions to cells."""
        pushes = [{"optimizer": 0, "cells": list(cells), "tables": list(tables)}]
        self.ask(
            "plan",
            {
                "id": name,
                "reads": [],
                "tables": [],
                "pushes": pushes if cells or tables else [],
                "pushed": [*cells, *tables],
                "writes": [[cell, None, "add"] for cell in writes],
            },
        )

    def push(self, closure, buffers, plan="p"):
        head = {"plan": plan, "closure": closure, "push": True, "pull": False}
        return self.ask("exchange", head, [raw(np.asarray(buffer)) for buffer in buffers])

    def value(self, cell, shape, slot=None):
        (buffer,) = self.ask("read", {"cells": [[cell, slot]]}).buffers
        return np.array(array_of(buffer, "float32", shape))


def ones(*shape):
    return np.ones(shape, "float32")


def held(server):
    """All that tells two servers apart."""
    return {
        "values": {
            number: [np.asarray(one).tolist() for one in (cell.value, *cell.slots)]
            for number, cell in server.cells.items()
        },
        "stamps": {n: (c.version, c.optimizer, c.part) for n, c in server.cells.items()},
        "optimizers": {
            number: (hosted.iterations, hosted.learning_rate, hosted.recipe.kind)
            for number, hosted in server.optimizers.items()
        },
        "counts": (server.clock, server.changes, dict(server.staleness)),
        "ids": (server.applied.ids(), server.requests.ids()),
    }
