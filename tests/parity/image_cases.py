"""Calls of `tf.image` on one image, of bytes and of floats; TensorFlow's or ours."""

import numpy as np

BYTES = np.random.default_rng(0).integers(0, 255, (5, 7, 3), dtype=np.uint8)
FLOATS = (BYTES / 255).astype("float32")

CASES = {
    **{
        f"resize_{method}": lambda tf, method=method: tf.image.resize(BYTES, (3, 4), method=method)
        for method in ("bilinear", "nearest", "bicubic", "area", "lanczos3")
    },
    "resize_aspect": lambda tf: tf.image.resize(FLOATS, (4, 4), preserve_aspect_ratio=True),
    "resize_antialias": lambda tf: tf.image.resize(FLOATS, (3, 4), antialias=True),
    "crop_or_pad": lambda tf: tf.image.resize_with_crop_or_pad(BYTES, 4, 10),
    "resize_with_pad": lambda tf: tf.image.resize_with_pad(FLOATS, 6, 6),
    "central_crop": lambda tf: tf.image.central_crop(BYTES, 0.5),
    "rot90": lambda tf: tf.image.rot90(BYTES),
    "pad": lambda tf: tf.image.pad_to_bounding_box(BYTES, 1, 2, 8, 10),
    "standardization": lambda tf: tf.image.per_image_standardization(BYTES),
    "gray": lambda tf: tf.image.rgb_to_grayscale(BYTES),
    "gray_floats": lambda tf: tf.image.rgb_to_grayscale(FLOATS),
    "brightness": lambda tf: tf.image.adjust_brightness(BYTES, 0.2),
    "brightness_floats": lambda tf: tf.image.adjust_brightness(FLOATS, 0.2),
    "contrast": lambda tf: tf.image.adjust_contrast(BYTES, 1.5),
    "contrast_floats": lambda tf: tf.image.adjust_contrast(FLOATS, 1.5),
    "saturation": lambda tf: tf.image.adjust_saturation(BYTES, 0.5),
    "saturation_floats": lambda tf: tf.image.adjust_saturation(FLOATS, 0.5),
    "hue": lambda tf: tf.image.adjust_hue(FLOATS, 0.3),
    # Darker than black, as a random change of brightness leaves images.
    "hue_of_dark": lambda tf: tf.image.adjust_hue(FLOATS - 0.5, -0.4),
    "saturation_of_dark": lambda tf: tf.image.adjust_saturation(FLOATS - 0.5, 3.0),
    "contrast_of_batch": lambda tf: tf.image.adjust_contrast(FLOATS[None], 2.0),
    "gray_of_batch": lambda tf: tf.image.rgb_to_grayscale(FLOATS[None]),
    "gamma": lambda tf: tf.image.adjust_gamma(FLOATS, 2.0, 0.5),
    "hsv": lambda tf: tf.image.rgb_to_hsv(FLOATS),
    "to_float": lambda tf: tf.image.convert_image_dtype(BYTES, "float32"),
    "to_uint8": lambda tf: tf.image.convert_image_dtype(FLOATS * 1.2, "uint8", saturate=True),
    "to_uint16": lambda tf: tf.image.convert_image_dtype(BYTES, "uint16"),
    "from_uint16": lambda tf: tf.image.convert_image_dtype(
        BYTES.astype("uint16") * np.uint16(257), "uint8"
    ),
}
