"""`ServerStore`: variables live on parameter servers, round-robin or divided by rows."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, final

import cloudpickle
import numpy as np
from jax.sharding import Sharding

from replicax._core.errors import UsageError
from replicax._keras import _compat
from replicax._net import raw
from replicax._ps.hosts.cluster import server_device
from replicax._ps.server.code import digest_of
from replicax._ps.store.home import CopiedHome, Placed, ServerHome, Shard
from replicax._ps.store.partition import num_shards, shard_rows
from replicax._ps.tables.table_home import EmptyHome, LocalTable, ServedTable, serve_table
from replicax._ps.variables.server_variable import (
    ServerVariable,
    ShardedVariable,
    home_of,
    move_out,
)
from replicax._ps.variables.shard_optimizer import Part, Recipe, ShardOptimizer, Slot, is_rowwise

if TYPE_CHECKING:
    from replicax._core.placement import VariableSpec
    from replicax._ps.store.servers import SteadyClient


@final
class ServerStore:
    """Variables on parameter servers.

    `partitioner` says into how many shards a variable is divided; None for one. `code` collects the
    pickles sent to servers, for restarted ones.
    """

    is_resident = False
    home = None
    has_tables = True

    def __init__(self, client: SteadyClient, partitioner: Any, code: list[bytes]) -> None:
        self._client, self._code = client, code
        self._partitioner = partitioner
        self._cells = itertools.count()
        self._turn = itertools.count()
        self._optimizers: dict[int, tuple[int, Any]] = {}
        # Variables by their ids; they are kept, so that no new variable gets an old id.
        self._hosted: dict[int, tuple[int, Any]] = {}
        # Variables and the optimizers that others have replaced.
        self._left: set[tuple[int, int | None]] = set()
        # Grows with each write of the coordinator, which makes values pulled earlier useless.
        self.epoch = 0
        # Called before the coordinator reads or writes: `fit` waits for its closures.
        self.before_access: Callable[[], None] = lambda: None

    @property
    def device_names(self) -> tuple[str, ...]:
        return tuple(map(server_device, range(self._client.num_servers)))

    def layout(self, spec: VariableSpec) -> Sharding | None:
        return None

    def claim(self, variable: Any) -> None:
        """Take a variable that was made in the scope, or that a closure uses."""
        if isinstance(home_of(variable), LocalTable):
            _compat.adopt(variable, self, None)
            serve_table(variable, self._client, self._cells, changed=self.changed, before=self.wait)
        if home_of(variable) is not None or _compat.optimizer_in_scope() is not None:
            return  # an optimizer's variables move beside those that it trains
        shape = tuple(variable.shape)
        dtype = _compat.stored_dtype(variable)
        shards = num_shards(self._partitioner, shape, dtype)
        create = functools.partial(_create_cell, self._client, variable)
        home = ServerHome(
            self._client,
            (),
            shape,
            dtype,
            make=lambda: (self._placed(shape, shards), create),
            changed=self.changed,
            before=self.wait,
        )
        _compat.adopt(variable, self, None)
        move_out(variable, home, ShardedVariable if shards > 1 else ServerVariable)

    def wait(self) -> None:
        """Wait for closures under way before a read or write."""
        self.before_access()

    def changed(self) -> None:
        """Note that later closures have to see something new."""
        self.epoch += 1

    def _placed(self, shape: tuple[int, ...], shards: int) -> list[Placed]:
        """The places of a new variable's shards."""
        places, start = [], 0
        for size in shard_rows(shape[0], shards) if shards > 1 else shape[:1] or (0,):
            server = next(self._turn) % self._client.num_servers
            places.append(Placed(server, next(self._cells), start, start + size))
            start += size
        return places

    def optimizer(self, optimizer: Any, variables: Sequence[Any]) -> int:
        """The number of an optimizer on the servers, which updates these variables from now on."""
        number, known = self._optimizers.get(id(optimizer), (len(self._optimizers), None))
        new = [v for v in variables if self._hosted.get(id(v), (None,))[0] != number]
        for variable in new:
            if (id(variable), number) in self._left:
                raise _two_optimizers(variable.path)
            self._left.add((id(variable), self._hosted.get(id(variable), (None,))[0]))
        if new or known is None:
            recipe, steps = Recipe.of(optimizer), int(_compat.read(_compat.iterations(optimizer)))
            if known is None:
                self._optimizers[id(optimizer)] = (number, optimizer)
                self._host(number, optimizer, recipe, steps)
            self._add(number, optimizer, new, recipe, is_new=steps == 0)
        return number

    def _host(self, number: int, optimizer: Any, recipe: Recipe, steps: int) -> None:
        rate = _compat.learning_rate(optimizer)
        is_variable = isinstance(rate, _compat.KerasVariable)
        head = {
            "id": number,
            "recipe": self._sent(recipe),
            "iterations": steps,
            "learning_rate": float(_compat.read(rate)) if is_variable else None,
            "cells": [],
            "constraint": None,
        }
        for server in range(self._client.num_servers):
            self._client.tell(server, "attach", head)
        counter = _compat.iterations(optimizer)
        for variable, name in [(counter, "iterations"), (rate, "learning_rate")]:
            if isinstance(variable, _compat.KerasVariable):
                variable.__dict__.pop("_value", None)  # already sent
                home: Any = Tuned(self, number, name, variable.dtype)
                move_out(variable, home)
                _compat.adopt(variable, self, None)

    def _sent(self, code: Any) -> str:
        """Send code to all servers, and return its name.

        It is noted first: a server may die right after naming it on disk.
        """
        pickled = cloudpickle.dumps(code)
        if pickled not in self._code:
            self._code.append(pickled)
            for server in range(self._client.num_servers):
                self._client.tell(server, "code", {}, [pickled])
        return digest_of(pickled)

    def _add(
        self,
        number: int,
        optimizer: Any,
        variables: Sequence[Any],
        recipe: Recipe,
        *,
        is_new: bool,
    ) -> None:
        by_rows = {id(v): _is_by_rows(home_of(v)) for v in variables}
        rowwise = not any(by_rows.values()) or is_rowwise(recipe)
        probe = ShardOptimizer(recipe)
        for variable in variables:
            constraint = getattr(variable, "constraint", None)
            sharded = by_rows[id(variable)]
            if sharded and (not rowwise or constraint is not None):
                raise _cannot_shard(variable, optimizer, constraint)
            shape = tuple(variable.shape)
            is_table = isinstance(home_of(variable), ServedTable)
            small = (2 if is_table else min(shape[0], 2), *shape[1:]) if sharded else shape
            part = Part(variable.path, small, _compat.stored_dtype(variable))
            slots = probe.slots_in(part, optimizer, variable)
            if any(slot.variable is None for slot in slots):
                raise _cannot_take_apart(optimizer)
            if is_table and any(slot.shared for slot in slots):
                raise _cannot_shard(variable, optimizer, constraint)
            self._move_slots(number, optimizer, variable, slots, is_new=is_new)

    def _move_slots(
        self,
        number: int,
        optimizer: Any,
        variable: Any,
        slots: Sequence[Slot],
        *,
        is_new: bool,
    ) -> None:
        decays = _compat.uses_weight_decay(optimizer, variable)
        places = home_of(variable).places
        # Now and not at the variable's creation: a layer sets it afterwards.
        constraint = getattr(variable, "constraint", None)
        digest = None if constraint is None else self._sent(constraint)
        is_table = isinstance(home_of(variable), ServedTable)
        values = (
            []
            if is_new or is_table
            else [np.asarray(_compat.stored(slot.variable)) for slot in slots]
        )
        for place in places:
            pieces = [
                value if slot.shared or len(places) == 1 else value[place.start : place.stop]
                for slot, value in zip(slots, values, strict=bool(values))
            ]
            head = {
                "id": number,
                "cells": [[place.cell, len(pieces), decays]],
                "constraint": digest,
            }
            self._client.tell(place.server, "attach", head, [raw(piece) for piece in pieces])
        for index, (slot, shared) in enumerate(slots):
            if is_table:
                home: Any = EmptyHome(tuple(slot.shape)[1:], slot.dtype)
            elif shared:
                known = home_of(slot)
                home = known if isinstance(known, CopiedHome) else CopiedHome()
                home.homes += [self._slot_home(slot, [place], index) for place in places]
            else:
                home = self._slot_home(slot, places, index)
            slot.__dict__.pop("_value", None)
            move_out(slot, home)
            _compat.adopt(slot, self, None)
        self._hosted[id(variable)] = number, variable

    def _slot_home(self, slot: Any, places: Sequence[Placed], index: int) -> ServerHome:
        return ServerHome(
            self._client,
            places,
            tuple(slot.shape),
            _compat.stored_dtype(slot),
            slot=index,
            changed=self.changed,
            before=self.wait,
        )

    def tune(self, number: int, name: str, value: Any = None) -> Any:
        """Read, or change, the state that an optimizer has once for all variables."""
        wanted = {} if value is None else {name: value}
        self.wait()
        head = {"id": number, "set": wanted}
        servers = range(self._client.num_servers)
        found = [self._client.call(server, "tune", head).head[name] for server in servers]
        if wanted:
            self.changed()
        return max(found)


@final
class Tuned:
    """The home of an optimizer's step counter or learning rate: each server has a copy."""

    def __init__(self, store: ServerStore, number: int, name: str, dtype: str) -> None:
        self._store, self._number, self._name, self._dtype = store, number, name, dtype

    def read(self) -> np.ndarray:
        value = self._store.tune(self._number, self._name)
        return np.asarray(value, np.dtype(self._dtype))

    def write(self, value: Any) -> None:
        self._store.tune(self._number, self._name, np.asarray(value).item())

    def shards(self) -> list[Shard]:
        return [Shard("/job:ps", (), self._dtype, self.read, self.write)]

    def described(self) -> dict[str, Any]:
        what = [self._number, self._name, self._dtype]
        return {"shape": (), "dtype": self._dtype, "slot": None, "parts": [[0, what, 0, 0]]}


def _create_cell(client: SteadyClient, variable: Any, place: Placed, piece: np.ndarray) -> None:
    head = {
        "cell": place.cell,
        "path": variable.path,
        "shape": piece.shape,
        "dtype": str(piece.dtype),
        "decays": True,
    }
    client.call(place.server, "create", head, [raw(piece)])


def _is_by_rows(home: Any) -> bool:
    """Whether no server has all of a variable."""
    return len(home.places) > 1 or isinstance(home, ServedTable)


def _cannot_shard(variable: Any, optimizer: Any, constraint: Any) -> UsageError:
    """The error for a variable in shards that is updated as a whole."""
    what = f"the constraint {type(constraint).__name__}" if constraint else "its update"
    return UsageError(
        f"Cannot train '{variable.path}' in shards with {type(optimizer).__name__}: {what} needs "
        "the whole variable. Pass no `variable_partitioner`, or one that leaves this variable "
        "whole."
    )


def _two_optimizers(path: str) -> UsageError:
    """The error for a variable that a second optimizer has taken over."""
    return UsageError(
        f"Another optimizer has taken over '{path}', and the state of the first one is gone. Train "
        "the variable with one optimizer, or make a new one, which begins without state."
    )


def _cannot_take_apart(optimizer: Any) -> UsageError:
    """The error for an optimizer whose variables cannot be told apart."""
    return UsageError(
        f"Cannot split {type(optimizer).__name__} between servers: some of its variables are not "
        "in its attributes. Keep one for all, or a list with one for each trained variable, as "
        "Keras' optimizers do."
    )
