"""A program for machines: `fit` with parameter servers; the chief writes what it came to."""

import json
import os
import time
from pathlib import Path

import keras
import train

import replicax as rx

RESULTS = os.environ.get("RESULTS", ".")
task = json.loads(os.environ["TF_CONFIG"])["task"]
Path(RESULTS, f"{task['type']}-{task['index']}-{os.uname().nodename}").touch()
strategy = rx.ParameterServerStrategy()  # workers and parameter servers go no further
with strategy.scope():
    net = train.model(rate=0.005)  # slow: workers compute with the weights of some steps ago
x, y = train.data()
epochs = int(os.environ.get("EPOCHS", "4")) if os.environ.get("RX_RESTART", "0") == "0" else 4


class Slow(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        Path("epoch").write_text(str(epoch))
        time.sleep(float(os.environ.get("PAUSE", "0")))


history = net.fit(x, y, batch_size=16, epochs=epochs, verbose=2, callbacks=[Slow()]).history
Path(RESULTS, "served.json").write_text(json.dumps(history["loss"]))
strategy.close()
