"""`tf.keras.ops` and `tf.keras.random`, where Keras' functions lack what TensorFlow's tapes and
compiled functions have."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import keras
from keras import ops

from replicax._core.host_calls import is_compiling
from replicax._core.tracing import current_trace
from replicax._keras import _compat
from replicax._tape.recording_trace import RecordingTrace
from replicax.tf._flow import control_flow
from replicax.tf._flow.touched import Touched, in_scope
from replicax.tf._random_streams import streams


def _recorded(compute: Callable[..., Any]) -> Callable[..., Any]:
    """A function that calls others in code that JAX compiles, of which a tape sees the variables.

    A tape outside compiled code does not see what is read in there; so they are read before.
    """

    @functools.wraps(compute)
    def call(*args: Any, **options: Any) -> Any:
        trace = current_trace()
        if not isinstance(trace, RecordingTrace) or not trace.is_eager:
            return compute(*args, **options)

        def whole() -> Any:  # JAX keeps the trace of a function that it was given before
            given: Any = keras.tree.map_structure(_anew, (args, options))
            return compute(*given[0], **given[1])

        def build() -> Any:
            touched = Touched()
            touched.by(whole)
            result, news = touched.enter(*touched.values(), whole)
            touched.assign(news)
            return result

        return in_scope(build)

    return call


def _anew(value: Any) -> Any:
    return functools.partial(value) if callable(value) else value


cond = _recorded(ops.cond)
fori_loop = _recorded(ops.fori_loop)
map = _recorded(ops.map)
rnn = _recorded(_compat.jax_rnn.rnn)
scan = _recorded(ops.scan)
switch = _recorded(ops.switch)


@functools.wraps(ops.while_loop)
def while_loop(
    cond: Callable[..., Any], body: Callable[..., Any], loop_vars: Any, **options: Any
) -> Any:
    trace = current_trace()
    is_recorded = isinstance(trace, RecordingTrace) and trace.is_eager
    loop = control_flow.while_loop if is_recorded else ops.while_loop
    return loop(cond, body, loop_vars, **options)


def _unseeded(name: str) -> Callable[..., Any]:
    """A function of `keras.random` that draws new numbers in each call of compiled code, too.

    Keras refuses it there without a seed.
    """
    draw = getattr(keras.random, name)
    signature = inspect.signature(draw)

    @functools.wraps(draw)
    def call(*args: Any, **options: Any) -> Any:
        bound = signature.bind(*args, **options)
        if bound.arguments.get("seed") is None and is_compiling():
            bound.arguments["seed"] = streams().key()
        return draw(*bound.args, **bound.kwargs)

    return call


beta = _unseeded("beta")
binomial = _unseeded("binomial")
categorical = _unseeded("categorical")
dropout = _unseeded("dropout")
gamma = _unseeded("gamma")
normal = _unseeded("normal")
randint = _unseeded("randint")
shuffle = _unseeded("shuffle")
truncated_normal = _unseeded("truncated_normal")
uniform = _unseeded("uniform")
