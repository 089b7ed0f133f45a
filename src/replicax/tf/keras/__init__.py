"""`tf.keras`: Keras 3, and the older spellings that the guides use.

Names are the same objects as in `keras`; its modules are modules here, too, so that every form
of `import` works. What is added: layers for text, which Keras has for TensorFlow only; Replicax'
own data sets and callbacks where Keras needs TensorFlow; and older names of what Keras still has.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from replicax.tf._forward import forward

if TYPE_CHECKING:
    from keras import *

    from replicax.tf.keras import activations as activations
    from replicax.tf.keras import applications as applications
    from replicax.tf.keras import backend as backend
    from replicax.tf.keras import callbacks as callbacks
    from replicax.tf.keras import config as config
    from replicax.tf.keras import constraints as constraints
    from replicax.tf.keras import datasets as datasets
    from replicax.tf.keras import distribution as distribution
    from replicax.tf.keras import dtype_policies as dtype_policies
    from replicax.tf.keras import experimental as experimental
    from replicax.tf.keras import export as export
    from replicax.tf.keras import initializers as initializers
    from replicax.tf.keras import layers as layers
    from replicax.tf.keras import losses as losses
    from replicax.tf.keras import metrics as metrics
    from replicax.tf.keras import mixed_precision as mixed_precision
    from replicax.tf.keras import models as models
    from replicax.tf.keras import ops as ops
    from replicax.tf.keras import optimizers as optimizers
    from replicax.tf.keras import preprocessing as preprocessing
    from replicax.tf.keras import quantizers as quantizers
    from replicax.tf.keras import random as random
    from replicax.tf.keras import regularizers as regularizers
    from replicax.tf.keras import saving as saving
    from replicax.tf.keras import tree as tree
    from replicax.tf.keras import utils as utils
    from replicax.tf.keras import wrappers as wrappers

_MODULES = (
    "activations",
    "applications",
    "backend",
    "callbacks",
    "config",
    "constraints",
    "datasets",
    "distribution",
    "dtype_policies",
    "experimental",
    "export",
    "initializers",
    "layers",
    "losses",
    "metrics",
    "mixed_precision",
    "models",
    "ops",
    "optimizers",
    "preprocessing",
    "quantizers",
    "random",
    "regularizers",
    "saving",
    "tree",
    "utils",
    "wrappers",
)

__getattr__, __dir__ = forward(__name__, "keras", modules=_MODULES)
