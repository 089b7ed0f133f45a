"""Keras 2 as programs still spell it: functions, saving, callbacks."""
