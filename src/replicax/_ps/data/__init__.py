"""Data sets that workers read by themselves, and which batch of an epoch each of them gets."""
