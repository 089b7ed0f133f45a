"""Python runs this when it starts, where this folder is in PYTHONPATH; see `helpers.LEAN`.

What Keras looks for, and does without, is not there: importing it raises `ModuleNotFoundError`,
and `importlib.util.find_spec` finds nothing.
"""

import sys

sys.modules.update(dict.fromkeys(("matplotlib", "sklearn")))
