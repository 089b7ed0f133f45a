"""A program for machines: `fit` with `BackupAndRestore`; worker 1 fails in the second epoch."""

import os
import sys

import keras
import numpy as np
import train

import replicax as rx

strategy = rx.MultiWorkerMirroredStrategy()
task = strategy.cluster_resolver.task_id
with strategy.scope():
    net = train.model()


class Fault(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        if epoch == 1 and task == 1 and os.environ["RX_RESTART"] == "0":
            sys.exit(3)


x, y = train.data()
backup = rx.callbacks.BackupAndRestore("backup")
saved = keras.callbacks.ModelCheckpoint("saved.keras")
how = {"batch_size": 16, "epochs": 4, "verbose": 2}
history = net.fit(x, y, callbacks=[backup, saved, Fault()], **how)
print("epochs", history.epoch)
np.savez(f"weights-{task}.npz", *net.get_weights())
