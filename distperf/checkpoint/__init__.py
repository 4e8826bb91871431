"""Checkpoints: complete or absent, written by all ranks, read back at any world size and ZeRO stage."""
