"""Hosts to test against: `lab` is a fresh scripts/testbed for a test module, with LAB_HOSTS hosts (2).

    pytestmark = pytest.mark.lab
    LAB_HOSTS = 3
    LAB_UP = ("--extra", "tess:/bin/tcsh")     # more arguments for `testbed up`, where needed

    def test_it(lab):
        stream = lab.transport().connect(Host("host1", None))

Where no lab can be made the tests are skipped with the reason; with CI=true that is a failure.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from launcher.transport.ssh import SshTransport

TESTBED = Path(__file__).parents[2] / "scripts" / "testbed"


class Lab:
    """A running testbed."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.dir = Path(self.testbed("dir"))

    @property
    def net(self) -> str:
        """The lab's third octet: host K is 198.18.NET.K and 2001:db8:18:NET::K."""
        return (self.dir / "net").read_text().strip()

    @property
    def login(self) -> str:
        """ssh configuration lines by which names other than the lab's own log in too."""
        return f"User trainer\nIdentityFile {self.dir}/key\nUserKnownHostsFile {self.dir}/known_hosts"

    def address(self, k: int) -> str:
        return f"198.18.{self.net}.{k}"

    def testbed(self, *args: object) -> str:
        """Run `testbed ARGS` for this lab; its stdout."""
        command = [str(TESTBED), "--name", self.name, *map(str, args)]
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
        return done.stdout.strip()

    def ssh(self, k: int, command: str, user: str = "trainer") -> str:
        """Run a command on host K with the real ssh."""
        return self.testbed("ssh", k, "-l", user, command)

    def route(self, k: int, *args: str) -> None:
        """`ip route ARGS` in the network of host K."""
        subprocess.run(["ip", "-n", f"dp{self.net}-h{k}", "route", *args], check=True, timeout=10)

    def sshd(self, k: int, *lines: str) -> None:
        """Boot host K with these lines in its sshd_config."""
        (self.dir / f"h{k}" / "sshd_extra").write_text("".join(f"{line}\n" for line in lines))
        self.testbed("boot", k)

    def transport(self, command: str = "cat", config: str = "", **options: float) -> SshTransport:
        """Transport that runs `command`, with ssh configuration lines that come before the lab's own."""
        path = self.dir / f"config-{abs(hash(config)):x}"
        path.write_text(f"{config}\nHost *\nInclude {self.dir}/ssh_config\n")
        return SshTransport(lambda host: command, config_path=str(path), **options)  # type: ignore[arg-type]


def why_no_lab() -> str | None:
    """What this machine lacks for a lab, if anything."""
    if not hasattr(os, "geteuid") or os.geteuid() != 0:
        return "needs root for network namespaces"
    for tool in ("ip", "unshare", "nsenter", "ssh", "ssh-keygen", "/usr/sbin/sshd"):
        if shutil.which(tool) is None:
            return f"needs {tool}"
    probe = subprocess.run(
        ["unshare", "--net", "--mount", "--pid", "--fork", "true"], capture_output=True, text=True
    )
    return f"no namespaces here: {probe.stderr.strip()}" if probe.returncode else None


@pytest.fixture(scope="module")
def lab(request: pytest.FixtureRequest) -> Iterator[Lab]:
    reason = why_no_lab()
    if reason and os.environ.get("CI") == "true":
        pytest.fail(reason)
    if reason:
        pytest.skip(reason)
    made = Lab(f"t{os.getpid()}")
    try:
        made.testbed("up", getattr(request.module, "LAB_HOSTS", 2), *getattr(request.module, "LAB_UP", ()))
        yield made
    finally:
        made.testbed("down")
