"""Checkpoints in the memory of the nodes: a restart goes on from there without touching a disk."""
