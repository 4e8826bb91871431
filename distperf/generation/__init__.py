"""Text from a trained model: a model opened to read, a cache of keys and values, and the choice of tokens."""
