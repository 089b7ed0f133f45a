"""A user's unmodified script, run inside another: `plan`, `verify`, `profile`, `doctor`, `migrate`.

`_program.py`   as if it had been started by itself
`_under.py`     under a strategy that it did not choose
`_steps.py`     for so many training steps
`_replaced.py`  with a function of Keras replaced, to see how it is called
"""

from replicax._tools.script._program import run_program
from replicax._tools.script._replaced import replaced
from replicax._tools.script._steps import NO_TRAINING, Ended, ended_after
from replicax._tools.script._under import under

__all__ = ["NO_TRAINING", "Ended", "ended_after", "replaced", "run_program", "under"]
