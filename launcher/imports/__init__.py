"""Other tools' configurations and command lines as recipes: pure conversion, with a word on every key."""
