"""The launcher: from a recipe and a hostfile to a supervised run. Never imports torch, not even indirectly."""
