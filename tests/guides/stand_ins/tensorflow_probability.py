"""A package that a program imports and does not use."""
