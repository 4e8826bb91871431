"""Where a shipped agent begins: quiet descriptors, the guardian, the marker line, hello, the loop."""

import os
import signal
import sys

from launcher import protocol
from launcher.agent import facts, processes
from launcher.agent.loop import Agent


def run(nonce: str) -> None:
    """Serve the controller on this process's stdin and stdout; returns when the run is over on this node."""
    in_fd, out_fd = os.dup(0), os.dup(1)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.dup2(2, 1)  # a stray print must not get between frames
    os.close(null)
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGPIPE):
        # The terminal's Ctrl-C is the controller's to act on; a hang-up ends the link, which is seen as such.
        signal.signal(number, signal.SIG_IGN)
    processes.adopt_orphans()
    guardian_fd = processes.start_guardian(in_fd, out_fd)
    os.write(out_fd, b"\n" + protocol.marker(nonce))
    agent = Agent(in_fd, out_fd, guardian_fd)
    if (
        "SLURM_STEP_ID" in os.environ
    ):  # SLURM signals whole steps: the controller must hear of it, and us survive it
        agent.tell_of(signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)
    agent.say(protocol.Hello(protocol.VERSION, facts.node_facts()))
    try:
        agent.serve()
    except Exception as error:  # the agent's one boundary: what is wrong must reach the controller
        sys.stderr.write("agent: %s: %s\n" % (type(error).__name__, error))
        raise
