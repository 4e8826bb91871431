"""The agent: what runs on every node. Shipped over the controller's connection, never installed; standard library
only, Python 3.8 syntax, Linux. It knows processes, files and pipes, and nothing of training.
"""
