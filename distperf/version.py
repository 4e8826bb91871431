"""The one place that states the version; packaging, `--version` and version checks between nodes read it."""

__version__ = "0.1.0"
