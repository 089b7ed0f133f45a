"""As the tutorial "Multi-worker training with Keras": one of the processes of TF_CONFIG."""

import replicax.tf as tf

import json
import os
import shutil

import mnist_setup

folder = os.environ["GUIDE_FOLDER"]  # a folder that all workers see
per_worker_batch_size = 64
tf_config = json.loads(os.environ["TF_CONFIG"])
num_workers = len(tf_config["cluster"]["worker"])

strategy = tf.distribute.MultiWorkerMirroredStrategy()
tf.keras.utils.set_random_seed(1)

options = tf.data.Options()
options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
global_batch_size = per_worker_batch_size * num_workers
multi_worker_dataset = mnist_setup.mnist_dataset(global_batch_size).with_options(options)

with strategy.scope():
    multi_worker_model = mnist_setup.build_and_compile_cnn_model()
history = multi_worker_model.fit(multi_worker_dataset, epochs=2, steps_per_epoch=4)


# Every worker saves; only the chief's files stay.
def _is_chief(task_type, task_id):
    return (task_type == "worker" and task_id == 0) or task_type is None


def _get_temp_dir(dirpath, task_id):
    temp_dir = os.path.join(dirpath, "workertemp_" + str(task_id))
    tf.io.gfile.makedirs(temp_dir)
    return temp_dir


def write_filepath(filepath, task_type, task_id):
    dirpath = os.path.dirname(filepath)
    base = os.path.basename(filepath)
    if not _is_chief(task_type, task_id):
        dirpath = _get_temp_dir(dirpath, task_id)
    return os.path.join(dirpath, base)


task_type, task_id = (strategy.cluster_resolver.task_type, strategy.cluster_resolver.task_id)
model_path = os.path.join(folder, "models", "keras-model.keras")
tf.io.gfile.makedirs(os.path.dirname(model_path))
write_model_path = write_filepath(model_path, task_type, task_id)
multi_worker_model.save(write_model_path)
if not _is_chief(task_type, task_id):
    tf.io.gfile.rmtree(os.path.dirname(write_model_path))

# Checkpoints, the same way.
checkpoint_dir = os.path.join(folder, "checkpoints", "ckpt")
checkpoint = tf.train.Checkpoint(model=multi_worker_model)
write_checkpoint_dir = write_filepath(checkpoint_dir, task_type, task_id)
checkpoint_manager = tf.train.CheckpointManager(
    checkpoint, directory=write_checkpoint_dir, max_to_keep=1
)
checkpoint_manager.save()
if not _is_chief(task_type, task_id):
    tf.io.gfile.rmtree(write_checkpoint_dir)

# BackupAndRestore: by epochs, then every three steps; and ModelCheckpoint.
backup_dir = write_filepath(os.path.join(folder, "backups", "backup"), task_type, task_id)
callbacks = [
    tf.keras.callbacks.BackupAndRestore(backup_dir=backup_dir),
    tf.keras.callbacks.ModelCheckpoint(
        write_filepath(os.path.join(folder, "kept", "last.keras"), task_type, task_id)
    ),
]
with strategy.scope():
    multi_worker_model = mnist_setup.build_and_compile_cnn_model()
again = multi_worker_model.fit(
    multi_worker_dataset, epochs=2, steps_per_epoch=4, callbacks=callbacks
)
callbacks = [tf.keras.callbacks.BackupAndRestore(backup_dir=backup_dir, save_freq=3)]
with strategy.scope():
    multi_worker_model = mnist_setup.build_and_compile_cnn_model()
multi_worker_model.fit(multi_worker_dataset, epochs=1, steps_per_epoch=4, callbacks=callbacks)

figures = {
    "task": [task_type, task_id],
    "losses": history.history["loss"],
    "again": again.history["loss"],
    "model_saved": os.path.exists(model_path),
}
shutil.rmtree(os.path.join(folder, "backups"), ignore_errors=True)
