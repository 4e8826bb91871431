"""Optimizer state outside of the device's memory: on the host, or on drives."""
