"""Short names of losses, which `tf.keras.losses` and `tf.keras.metrics` have."""

from __future__ import annotations

SHORT_NAMES = {
    "bce": "keras.losses:binary_crossentropy",
    "cosine_proximity": "keras.losses:cosine_similarity",
    "KLD": "keras.losses:kl_divergence",
    "kld": "keras.losses:kl_divergence",
    "kullback_leibler_divergence": "keras.losses:kl_divergence",
    "logcosh": "keras.losses:log_cosh",
    "MAE": "keras.losses:mean_absolute_error",
    "mae": "keras.losses:mean_absolute_error",
    "MAPE": "keras.losses:mean_absolute_percentage_error",
    "mape": "keras.losses:mean_absolute_percentage_error",
    "MSE": "keras.losses:mean_squared_error",
    "mse": "keras.losses:mean_squared_error",
    "MSLE": "keras.losses:mean_squared_logarithmic_error",
    "msle": "keras.losses:mean_squared_logarithmic_error",
}
