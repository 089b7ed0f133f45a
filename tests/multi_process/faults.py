"""A program in which one worker does what it should not; the arguments say what, and which.

`replicax run --workers 2 tests/multi_process/faults.py kill 1`
"""

import os
import resource
import signal
import sys
import time

import jax
import keras
import numpy as np

import replicax as rx

FAULT, CULPRIT = sys.argv[1], int(sys.argv[2])
print(f"pid {os.getpid()}.", flush=True)
AT = 3  # the step after which it happens

strategy = rx.MultiWorkerMirroredStrategy()
is_culprit = jax.process_index() == CULPRIT
if FAULT == "kill at once" and is_culprit:
    os.kill(os.getpid(), signal.SIGKILL)


def stand_still():
    time.sleep(1000)  # here it stands still


def be_busy():
    while True:
        sum(range(1000))  # here it is busy


def misbehave():
    if FAULT.startswith(("kill", "stop")):
        time.sleep(1.5)  # until the others have heard at which step it is
    print("fault now", flush=True)
    match FAULT:
        case "memory":
            _, hard = resource.getrlimit(resource.RLIMIT_AS)
            resource.setrlimit(resource.RLIMIT_AS, (1 << 36, hard))
            bytearray(1 << 37)
        case "kill" | "kill in a loop":
            os.kill(os.getpid(), signal.SIGKILL)
        case "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        case "raise":
            raise ValueError("this worker cannot go on")
        case "sleep":
            stand_still()
        case "nap":
            time.sleep(6)
        case "busy":
            be_busy()
        case "exit":
            sys.exit(0)


class Fault(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        if batch == AT and is_culprit:
            misbehave()


def fit():
    layers = [keras.layers.Dense(4), keras.layers.Dense(1)]
    if FAULT == "program" and is_culprit:
        layers.insert(1, keras.layers.ReLU())
    with strategy.scope():
        model = keras.Sequential(layers)
        model.compile("sgd", "mse")
    x, y = np.ones((400, 2), "float32"), np.ones((400, 1), "float32")
    model.fit(x, y, batch_size=8, verbose=0, callbacks=[Fault()])


def total(x):
    return x.sum()


def mean_of_all(x):
    return rx.get_replica_context().all_reduce("MEAN", x)


def mean_of_double(x):
    return mean_of_all(2 * x)


def out_of_step():
    """Loops that do not fit together: the culprit leaves a batch early, or reduces once more."""
    step = rx.function(lambda x: strategy.run(mean_of_all, (x,)))
    check = rx.function(lambda x: strategy.run(mean_of_double, (x,)))
    whole = strategy.experimental_distribute_values_from_function(
        lambda context: np.ones((4,), "float32")
    )
    for compiled in (step, check):  # on all workers, so that nothing is compiled later
        strategy.reduce("SUM", compiled(whole), None)
    for number in range(10):
        if FAULT == "leave early" and is_culprit and number == 9:
            print("fault now", flush=True)
            break
        found = step(whole)
        if FAULT == "reduce more" and is_culprit and number == AT:
            print("fault now", flush=True)
            strategy.reduce("SUM", found, None)
    for _ in range(10):
        found = check(whole)
    print(strategy.reduce("SUM", found, None))


def loop():
    batches = iter(
        strategy.distribute_datasets_from_function(
            lambda context: (np.ones((2, 2), "float32") for _ in range(50))
        )
    )
    for step in range(50):
        if step == AT and is_culprit:
            misbehave()
        found = strategy.run(total, (next(batches),))
        print(step, float(strategy.reduce("SUM", found, None)))


if FAULT in ("leave early", "reduce more"):
    out_of_step()
else:
    (loop if FAULT == "kill in a loop" else fit)()
print("all done")
