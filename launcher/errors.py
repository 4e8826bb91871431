"""What can go wrong in launching because of a user, a disk, a network or a peer.

LauncherError                      exit code
  UsageError                       2   arguments that contradict each other or name nothing
  HostfileError (ValueError)       2   the hostfile, a nodelist or an --include/--exclude filter
  PlacementError (ValueError)      2   ranks and slots do not fit together
  MeasuringFailed                  1   ranks of `bench` that came to no end
  RunFolderError                   1   a run folder that is missing, unreadable or cannot be written
  TransportError                   3   a host could not be reached or prepared
    ConnectFailed                  3   no connection, or it ended before the agent answered
    AuthFailed                     3   the host is there but did not let us in
    HostKeyRejected                3   unknown or changed host key; nothing is ever accepted silently
    BootstrapFailed                3   logged in, but the agent could not start (no python3, a shell that refuses, ...)
    ProtocolError                  3   the peer speaks another version, or not ours at all
    SetupFailed                    3   a line of launch.setup failed there
    SyncFailed                     3   the code of launch.sync did not get there
  PreflightError                   4   the hosts are there, but this run cannot work on them
"""

from __future__ import annotations


class LauncherError(Exception):
    """Root of the tree. Its text is shown to the user as it is, without a traceback."""

    exit_code = 1


class UsageError(LauncherError):
    """Arguments that contradict each other or name nothing."""

    exit_code = 2


class HostfileError(LauncherError, ValueError):
    """The hostfile, a nodelist or a filter is wrong; the text names file, line and what was found."""

    exit_code = 2


class PlacementError(LauncherError, ValueError):
    """Ranks and slots do not fit together."""

    exit_code = 2


class RunFolderError(LauncherError):
    """A run folder is missing, unreadable or cannot be written."""


class MeasuringFailed(LauncherError):
    """Ranks of `bench` came to no end; the text has each host's reason."""


class TransportError(LauncherError):
    """A host could not be reached or prepared."""

    exit_code = 3

    def __init__(self, host: str, reason: str) -> None:
        super().__init__(f"{host}: {reason}")
        self.host = host
        self.reason = reason


class ConnectFailed(TransportError):
    """No connection, or it ended before the agent answered."""


class AuthFailed(TransportError):
    """The host is there but did not let us in."""


class HostKeyRejected(TransportError):
    """The host key is unknown or has changed."""


class BootstrapFailed(TransportError):
    """Logged in, but the agent could not start."""


class ProtocolError(TransportError):
    """The peer speaks another version, or not our protocol at all."""


class SetupFailed(TransportError):
    """A line of launch.setup failed on the host."""


class SyncFailed(TransportError):
    """The code that goes along could not be sent, or not be kept there."""


class PreflightError(LauncherError):
    """The hosts are there, but this run cannot work on them."""

    exit_code = 4
