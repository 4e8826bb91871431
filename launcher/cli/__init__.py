"""The command line: argument, call, exit code. No logic here."""
