"""Text and token shards, the order of samples, and the loader that ranks read from. No imports here."""
