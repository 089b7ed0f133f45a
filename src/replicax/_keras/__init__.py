"""The seams in Keras: each is made by `_compat.py`, and README.md gives its reason."""
