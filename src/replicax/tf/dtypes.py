"""`tf.dtypes`: the types of numbers."""

from __future__ import annotations

from typing import Any

from replicax.tf._dtypes import DType as DType
from replicax.tf._dtypes import as_dtype as as_dtype
from replicax.tf._dtypes import bfloat16 as bfloat16
from replicax.tf._dtypes import bool as bool
from replicax.tf._dtypes import complex64 as complex64
from replicax.tf._dtypes import complex128 as complex128
from replicax.tf._dtypes import double as double
from replicax.tf._dtypes import float16 as float16
from replicax.tf._dtypes import float32 as float32
from replicax.tf._dtypes import float64 as float64
from replicax.tf._dtypes import half as half
from replicax.tf._dtypes import int8 as int8
from replicax.tf._dtypes import int16 as int16
from replicax.tf._dtypes import int32 as int32
from replicax.tf._dtypes import int64 as int64
from replicax.tf._dtypes import string as string
from replicax.tf._dtypes import uint8 as uint8
from replicax.tf._dtypes import uint16 as uint16
from replicax.tf._dtypes import uint32 as uint32
from replicax.tf._dtypes import uint64 as uint64
from replicax.tf._elementwise import cast as cast
from replicax.tf._elementwise import complex as complex
from replicax.tf._elementwise import saturate_cast as saturate_cast
from replicax.tf._missing import missing_name


def __getattr__(name: str) -> Any:
    raise missing_name("tf.dtypes", name)
