"""`tf.debugging`: checks, of which those of values hold in compiled code, too."""

from __future__ import annotations

from typing import Any

from replicax.tf._debugging import Assert as Assert
from replicax.tf._debugging import assert_all_finite as assert_all_finite
from replicax.tf._debugging import assert_equal as assert_equal
from replicax.tf._debugging import assert_greater as assert_greater
from replicax.tf._debugging import assert_greater_equal as assert_greater_equal
from replicax.tf._debugging import assert_integer as assert_integer
from replicax.tf._debugging import assert_less as assert_less
from replicax.tf._debugging import assert_less_equal as assert_less_equal
from replicax.tf._debugging import assert_near as assert_near
from replicax.tf._debugging import assert_negative as assert_negative
from replicax.tf._debugging import assert_non_negative as assert_non_negative
from replicax.tf._debugging import assert_non_positive as assert_non_positive
from replicax.tf._debugging import assert_none_equal as assert_none_equal
from replicax.tf._debugging import assert_positive as assert_positive
from replicax.tf._debugging import assert_rank as assert_rank
from replicax.tf._debugging import assert_rank_at_least as assert_rank_at_least
from replicax.tf._debugging import assert_rank_in as assert_rank_in
from replicax.tf._debugging import assert_same_float_dtype as assert_same_float_dtype
from replicax.tf._debugging import assert_scalar as assert_scalar
from replicax.tf._debugging import assert_shapes as assert_shapes
from replicax.tf._debugging import assert_type as assert_type
from replicax.tf._debugging import check_numerics as check_numerics
from replicax.tf._debugging import disable_check_numerics as disable_check_numerics
from replicax.tf._debugging import disable_traceback_filtering as disable_traceback_filtering
from replicax.tf._debugging import enable_check_numerics as enable_check_numerics
from replicax.tf._debugging import enable_traceback_filtering as enable_traceback_filtering
from replicax.tf._debugging import get_log_device_placement as get_log_device_placement
from replicax.tf._debugging import is_numeric_tensor as is_numeric_tensor
from replicax.tf._debugging import is_traceback_filtering_enabled as is_traceback_filtering_enabled
from replicax.tf._debugging import set_log_device_placement as set_log_device_placement
from replicax.tf._missing import missing_name


def __getattr__(name: str) -> Any:
    raise missing_name(__name__, name)
