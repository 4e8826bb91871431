"""`python -m launcher` is `distperf`."""

from launcher.cli.main import main

main()
