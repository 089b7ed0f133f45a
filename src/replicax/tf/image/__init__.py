"""`tf.image`: images as arrays; NumPy arrays, as in pipelines, stay on the host."""

from __future__ import annotations

from typing import Any

from replicax.tf._image import ResizeMethod as ResizeMethod
from replicax.tf._image import adjust_brightness as adjust_brightness
from replicax.tf._image import adjust_contrast as adjust_contrast
from replicax.tf._image import adjust_gamma as adjust_gamma
from replicax.tf._image import adjust_hue as adjust_hue
from replicax.tf._image import adjust_saturation as adjust_saturation
from replicax.tf._image import central_crop as central_crop
from replicax.tf._image import convert_image_dtype as convert_image_dtype
from replicax.tf._image import crop_to_bounding_box as crop_to_bounding_box
from replicax.tf._image import flip_left_right as flip_left_right
from replicax.tf._image import flip_up_down as flip_up_down
from replicax.tf._image import grayscale_to_rgb as grayscale_to_rgb
from replicax.tf._image import hsv_to_rgb as hsv_to_rgb
from replicax.tf._image import pad_to_bounding_box as pad_to_bounding_box
from replicax.tf._image import per_image_standardization as per_image_standardization
from replicax.tf._image import random_brightness as random_brightness
from replicax.tf._image import random_contrast as random_contrast
from replicax.tf._image import random_crop as random_crop
from replicax.tf._image import random_flip_left_right as random_flip_left_right
from replicax.tf._image import random_flip_up_down as random_flip_up_down
from replicax.tf._image import random_hue as random_hue
from replicax.tf._image import random_saturation as random_saturation
from replicax.tf._image import resize as resize
from replicax.tf._image import resize_with_crop_or_pad as resize_with_crop_or_pad
from replicax.tf._image import resize_with_pad as resize_with_pad
from replicax.tf._image import rgb_to_grayscale as rgb_to_grayscale
from replicax.tf._image import rgb_to_hsv as rgb_to_hsv
from replicax.tf._image import rot90 as rot90
from replicax.tf._image import stateless_random_brightness as stateless_random_brightness
from replicax.tf._image import stateless_random_contrast as stateless_random_contrast
from replicax.tf._image import stateless_random_crop as stateless_random_crop
from replicax.tf._image import (
    stateless_random_flip_left_right as stateless_random_flip_left_right,
)
from replicax.tf._image import stateless_random_flip_up_down as stateless_random_flip_up_down
from replicax.tf._image import stateless_random_hue as stateless_random_hue
from replicax.tf._image import stateless_random_saturation as stateless_random_saturation
from replicax.tf._image import transpose as transpose
from replicax.tf._missing import missing_name
from replicax.tf.io import decode_bmp as decode_bmp
from replicax.tf.io import decode_image as decode_image
from replicax.tf.io import decode_jpeg as decode_jpeg
from replicax.tf.io import decode_png as decode_png
from replicax.tf.io import encode_jpeg as encode_jpeg
from replicax.tf.io import encode_png as encode_png


def __getattr__(name: str) -> Any:
    raise missing_name(__name__, name)
