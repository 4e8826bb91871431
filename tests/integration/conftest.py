from integration.lab import lab

__all__ = ["lab"]
