"""Plain modules that know nothing of parallelism, their initial values and their arithmetic."""
