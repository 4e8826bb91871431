"""What a machine can do, measured by the code that trains on it."""
