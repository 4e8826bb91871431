"""The SSH transport against real sshds, each in a host of its own."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
import zlib
from concurrent.futures import ThreadPoolExecutor

import pytest

from launcher.errors import AuthFailed, ConnectFailed, HostKeyRejected
from launcher.hostfile import Host
from launcher.transport import bundle

pytestmark = pytest.mark.lab

LAB_HOSTS = 3
LAB_UP = (
    *(
        "--extra",
        "tess:/bin/tcsh",
        "--extra",
        "finn:/usr/bin/fish",
        "--extra",
        "nora:/usr/sbin/nologin",
        "--extra",
        "paul:/bin/sh",
    ),
    *(
        "--sshd",
        "Match User paul",
        "--sshd",
        "PasswordAuthentication yes",
        "--sshd",
        "AuthenticationMethods password",
    ),
)

HOST1, HOST2, HOST3 = (Host(f"host{k}", None) for k in (1, 2, 3))


def read_all(stream) -> bytes:
    data = b""
    while more := stream.read(1 << 16):
        data += more
    return data


def seconds(since: float) -> float:
    return time.monotonic() - since


def wait_until(holds, limit_s: float = 10.0) -> None:
    started = time.monotonic()
    while not holds():
        assert seconds(started) < limit_s


def keys(lab, k: int, kind: str = "ed25519") -> str:
    return " ".join((lab.dir / f"h{k}" / f"{kind}.pub").read_text().split()[:2])


def test_bytes_go_both_ways(lab):
    """Two hosts, each with its own stream; what is written comes back, and the end tells the status."""
    transport = lab.transport("head -c 9; hostname; echo oh no >&2; exit 3")
    for host in (HOST1, HOST2):
        stream = transport.connect(host)
        stream.write(b"\x00\xff\r\n'\"$`\\")
        assert read_all(stream) == b"\x00\xff\r\n'\"$`\\" + f"{host.name}\n".encode()
        assert stream.explain() == "the remote command ended with status 3; it said:\noh no"
        stream.close()
    transport.close()


def test_ipv6_address(lab):
    """A bare IPv6 address is a host."""
    stream = lab.transport("hostname").connect(Host(f"2001:db8:18:{lab.net}::2", None))
    assert read_all(stream) == b"host2\n"
    stream.close()


def echo_through_first_stage(stream) -> None:
    code = zlib.compress(b"sys.stdout.write('ready:'+f.read(4).decode())")
    stream.write(b"%08d" % len(code) + code + b"ping")


@pytest.mark.parametrize(("user", "shell"), [("trainer", "bash"), ("tess", "tcsh"), ("finn", "fish")])
def test_bootstrap_in_any_login_shell(lab, user, shell):
    """B05: the first stage starts from bash, tcsh and fish alike."""
    if shutil.which(shell) is None and os.environ.get("CI") != "true":
        pytest.skip(f"needs {shell}")
    stream = lab.transport(bundle.command()).connect(Host("host1", None, user=user))
    echo_through_first_stage(stream)
    assert read_all(stream) == b"ready:ping"
    stream.close()


def test_noise_of_a_profile_comes_first(lab):
    """B03: What .bashrc prints arrives before the command's own output, and neither is damaged."""
    lab.ssh(1, """echo 'echo welcome; echo "{\\"json\\": 1}"' > .bashrc""")
    stream = lab.transport(bundle.command()).connect(HOST1)
    echo_through_first_stage(stream)
    assert read_all(stream) == b'welcome\n{"json": 1}\nready:ping'
    stream.close()
    lab.ssh(1, "rm .bashrc")


@pytest.mark.parametrize(
    ("user", "command", "said", "status"),
    [("trainer", "exec no-such-python3 -c x", "no-such-python3", 127), ("nora", "cat", "", 1)],
)
def test_a_command_that_cannot_start_is_explained(lab, user, command, said, status):
    """No interpreter, or an account without a shell: the stream ends and knows status and stderr."""
    stream = lab.transport(command).connect(Host("host1", None, user=user))
    text = read_all(stream).decode()
    assert f"status {status}" in stream.explain()
    assert said in stream.explain()
    assert user != "nora" or "not available" in text
    stream.close()


def test_a_killed_command_is_told_from_a_lost_link(lab):
    """No exit status and a living connection: a signal ended it."""
    stream = lab.transport("kill -9 $$").connect(HOST1)
    assert read_all(stream) == b""
    assert stream.explain() == "the remote command was killed by a signal"
    stream.close()


def test_stderr_cannot_block_stdout(lab):
    """Megabytes on stderr are read all the time, and only their end is kept."""
    stream = lab.transport("head -c 9000000 /dev/zero >&2; echo done; echo last words >&2").connect(HOST1)
    assert read_all(stream) == b"done\n"
    assert stream.explain().endswith("last words")
    stream.close()


def test_close_releases_a_blocked_writer_and_reader(lab):
    """A peer that does not read blocks a writer until close; a blocked reader gets the end of file."""
    stream = lab.transport("sleep 60").connect(HOST1)
    with ThreadPoolExecutor(2) as pool:
        writing = pool.submit(stream.write, bytes(32 << 20))
        reading = pool.submit(stream.read, 1)
        wait_until(lambda: lab.ssh(1, "pgrep -x sleep || true"))
        assert not writing.done()
        stream.close()
        stream.close()
        assert reading.result(timeout=5) == b""
        with pytest.raises(OSError):  # noqa: PT011 - any OSError is what Stream.write promises
            writing.result(timeout=5)


def test_callers_stdin_is_not_touched(lab):
    """A shell loop that feeds host names to a command keeps its lines."""
    script = (
        "from launcher.hostfile import Host; from launcher.transport.ssh import SshTransport;"
        "s = SshTransport(lambda host: 'hostname').connect(Host('host1', None)); print(s.read(99)); s.close()"
    )
    environment = {
        **os.environ,
        "DISTPERF_SSH_CONFIG": str(lab.dir / "ssh_config"),
        "PYTHONPATH": os.getcwd(),
    }
    done = subprocess.run(
        ["sh", "-c", f'"{sys.executable}" -c "{script}"; cat'],
        input=b"a\nb\n",
        env=environment,
        capture_output=True,
        timeout=30,
    )
    assert done.stdout == b"b'host1\\n'\na\nb\n", done.stderr


# ---- host keys


def test_unknown_host(lab, tmp_path):
    """B11: An empty known_hosts: refused in seconds, with the commands to run; nothing is written."""
    known = tmp_path / "known_hosts"
    started = time.monotonic()
    with pytest.raises(HostKeyRejected, match=r"unknown host key.*ssh-keyscan -p 22") as caught:
        lab.transport(config=f"UserKnownHostsFile {known}").connect(HOST1)
    assert "SHA256:" in str(caught.value)
    assert seconds(started) < 5
    assert not known.exists()


def test_changed_host_key(lab, tmp_path):
    """B10: A reinstalled host is refused with file and line of the old key, whatever StrictHostKeyChecking says."""
    known = tmp_path / "known_hosts"
    known.write_text(f"# two hosts\n{lab.address(2)} {keys(lab, 2)}\n{lab.address(1)} {keys(lab, 2)}\n")
    config = f"UserKnownHostsFile {known}\nStrictHostKeyChecking no"
    with pytest.raises(
        HostKeyRejected, match=rf"has changed: {known}:3 .*ssh-keygen -f {known} -R {lab.address(1)}"
    ):
        lab.transport(config=config).connect(HOST1)
    lab.transport(config=config).connect(HOST2).close()


def test_revoked_and_certified(lab, tmp_path):
    """A @revoked key is refused although it is listed; a @cert-authority is said to be unsupported."""
    known = tmp_path / "known_hosts"
    transport = lab.transport(config=f"UserKnownHostsFile {known}")
    known.write_text(f"{lab.address(1)} {keys(lab, 1)}\n@revoked * {keys(lab, 1)}\n")
    with pytest.raises(HostKeyRejected, match=f"revoked by {known}:2"):
        transport.connect(HOST1)
    known.write_text(f"@cert-authority * {keys(lab, 1)}\n")
    with pytest.raises(HostKeyRejected, match=f"{known}:1 trusts a @cert-authority"):
        transport.connect(HOST1)


def test_hashed_names_and_several_files(lab, tmp_path):
    """Hashed entries count, in any of the files."""
    known = tmp_path / "known_hosts"
    shutil.copy(lab.dir / "known_hosts", known)
    subprocess.run(["ssh-keygen", "-q", "-H", "-f", known], check=True, capture_output=True)
    assert "host1" not in known.read_text()
    lab.transport(config=f"UserKnownHostsFile {tmp_path}/none {known}").connect(HOST1).close()


def test_the_key_on_file_is_asked_for(lab, tmp_path):
    """A host with several keys is recognised by the one that known_hosts has, whichever paramiko likes best."""
    known = tmp_path / "known_hosts"
    known.write_text(f"{lab.address(1)} {keys(lab, 1, 'ecdsa')}\n")
    lab.transport(config=f"UserKnownHostsFile {known}").connect(HOST1).close()


def test_accept_new_is_the_users_word(lab, tmp_path, caplog):
    """With accept-new in the user's configuration an unknown key is written down, and said so."""
    known = tmp_path / "new" / "known_hosts"
    config = f"UserKnownHostsFile {known}"
    lab.transport(config=f"{config}\nStrictHostKeyChecking accept-new").connect(HOST1).close()
    assert "host1: new host key accepted" in caplog.text
    lab.transport(config=config).connect(HOST1).close()


# ---- keys and accounts


def test_password_only_account(lab):
    """B11: An account that takes a password only: refused in seconds, nobody is asked."""
    started = time.monotonic()
    with pytest.raises(
        AuthFailed, match=r"no login as paul@.*the server takes password.*ssh-copy-id"
    ) as caught:
        lab.transport().connect(Host("host1", None, user="paul"))
    assert seconds(started) < 5, caught


def test_encrypted_key_without_agent(lab, tmp_path):
    """A key with a passphrase that no agent holds: named, with the remedy."""
    key = tmp_path / "locked"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "secret", "-f", key], check=True)
    config = f"IdentityAgent none\nHost stranger\nHostName {lab.address(1)}\n{lab.login}"
    config = config.replace(f"{lab.dir}/key", str(key))
    with pytest.raises(AuthFailed, match=f"{key} has a passphrase .* run `ssh-add {key}`"):
        lab.transport(config=config).connect(Host("stranger", None))


def test_key_in_the_agent(lab, tmp_path):
    """The agent's key opens the door when no file can be read, IdentitiesOnly and a .pub file included."""
    agent = subprocess.Popen(["ssh-agent", "-D", "-a", tmp_path / "agent"], stdout=subprocess.DEVNULL)
    try:
        while not (tmp_path / "agent").exists():
            time.sleep(0.01)
        environment = {**os.environ, "SSH_AUTH_SOCK": str(tmp_path / "agent")}
        subprocess.run(["ssh-add", "-q", lab.dir / "key"], env=environment, check=True, capture_output=True)
        shutil.copy(lab.dir / "key.pub", tmp_path / "only.pub")
        config = (
            f"IdentityAgent {tmp_path}/agent\nIdentitiesOnly yes\nHost stranger\nHostName {lab.address(1)}\n"
        )
        config += lab.login.replace(f"{lab.dir}/key", f"{tmp_path}/only")
        lab.transport(config=config).connect(Host("stranger", None)).close()
    finally:
        agent.kill()
        agent.wait()


# ---- the way there


def test_jump_host(lab):
    """A host that only host1 can reach is reached through host1: one connection there for all behind it."""
    lab.route(2, "add", "blackhole", f"{lab.address(254)}/32")
    lab.route(3, "add", "blackhole", f"{lab.address(254)}/32")
    try:
        with pytest.raises(ConnectFailed, match="did not answer within 1 s"):
            lab.transport(config="ConnectTimeout 1").connect(HOST2)
        transport = lab.transport("hostname", "Host host2 host3\nProxyJump host1")
        with ThreadPoolExecutor(2) as pool:
            streams = list(pool.map(transport.connect, (HOST2, HOST3)))
        assert [read_all(stream) for stream in streams] == [b"host2\n", b"host3\n"]
        # One login is ours, one asks.
        wait_until(lambda: lab.ssh(1, "pgrep -fc '^sshd: trainer \\[priv\\]'") == "2")
        for stream in streams:
            stream.close()
        transport.close()
    finally:
        lab.route(2, "del", "blackhole", f"{lab.address(254)}/32")
        lab.route(3, "del", "blackhole", f"{lab.address(254)}/32")


def test_jump_host_with_a_wrong_key(lab, tmp_path):
    """Keys of jump hosts are verified too, and the message says which hop it was."""
    known = tmp_path / "known_hosts"
    known.write_text(f"{lab.address(1)} {keys(lab, 2)}\n")
    config = f"Host host2\nProxyJump host1\nHost host1\nUserKnownHostsFile {known}"
    with pytest.raises(
        HostKeyRejected, match=f"host2: on the way there, jump host host1: .*changed: {known}:1"
    ):
        lab.transport(config=config).connect(HOST2)


def test_jump_host_that_cannot_reach_the_target(lab):
    """The jump host is fine, its way on is not: both are named."""
    config = f"Host far\nHostName {lab.address(77)}\nPort 9\nConnectTimeout 1\nProxyJump host1"
    with pytest.raises(ConnectFailed, match=rf"far: jump host host1 cannot reach {lab.address(77)} port 9"):
        lab.transport(config=config).connect(Host("far", None))


def test_proxy_command(lab):
    """ProxyCommand is run as ssh runs it, tokens and all; one that fails is an error, not a wait."""
    config = f"Host host2\nProxyCommand ssh -F {lab.dir}/ssh_config -W %h:%p host1"
    transport = lab.transport("hostname", config)
    stream = transport.connect(HOST2)
    assert read_all(stream) == b"host2\n"
    stream.close()
    transport.close()
    transport = lab.transport(config="Host host2\nProxyCommand false", refused_retry_s=0.1)
    with pytest.raises(ConnectFailed, match="ProxyCommand `false` ended before any login"):
        transport.connect(HOST2)
    transport.close()


def test_more_logins_than_sshd_takes_at_once(lab):
    """Twelve names, one sshd that takes three logins at a time: all twelve start."""
    lab.sshd(3, "MaxStartups 3:100:3")
    config = f"Host alias*\nHostName {lab.address(3)}\nHostKeyAlias host3\n{lab.login}"
    transport = lab.transport("hostname", config)
    with ThreadPoolExecutor(12) as pool:
        streams = list(pool.map(transport.connect, [Host(f"alias{i}", None) for i in range(12)]))
    assert [read_all(stream) for stream in streams] == [b"host3\n"] * 12
    for stream in streams:
        stream.close()
    lab.sshd(3)


def test_wrong_port_is_refused_at_once(lab):
    """Nobody listens on the hostfile's port."""
    started = time.monotonic()
    with pytest.raises(ConnectFailed, match=rf"{lab.address(1)} port 23 refuses connections"):
        lab.transport().connect(Host("host1", None, port=23))
    assert seconds(started) < 2


def test_nobody_there(lab):
    """An address without a host: given up at the connect limit."""
    started = time.monotonic()
    with pytest.raises(ConnectFailed, match="did not answer within 1 s"):
        lab.transport(connect_timeout_s=1.0).connect(Host(lab.address(250), None))
    assert seconds(started) < 2.5


def test_cut_link_ends_a_read(lab):
    """A pulled cable sends nothing; the read ends all the same, well before a run's lease does."""
    stream = lab.transport("sleep 60").connect(HOST2)
    lab.testbed("cut", 2)
    started = time.monotonic()
    assert stream.read(1) == b""
    assert seconds(started) < 15
    assert stream.explain() == "the connection was lost"
    stream.close()
    lab.testbed("mend", 2)


# ---- the testbed itself


def test_hosts_are_hosts(lab):
    """Own name, own processes and disk; one shared folder; gone after power-off and back after boot."""
    assert lab.ssh(1, "hostname; ps ax | grep -c '[l]istener'") == "host1\n1"
    lab.ssh(1, f"touch /var/tmp/mine; echo hello > {lab.dir}/shared/note")
    assert lab.ssh(2, f"ls /var/tmp/mine 2>&1; cat {lab.dir}/shared/note").endswith(
        "No such file or directory\nhello"
    )
    assert (lab.dir / "shared" / "note").read_text() == "hello\n"
    lab.testbed("off", 3)
    assert "off" in lab.testbed("status").splitlines()[2]
    lab.testbed("boot", 3)
    assert lab.ssh(3, "hostname") == "host3"


def test_labs_do_not_meet(lab):
    """Two labs at once have networks of their own, and each takes away exactly what it made."""
    other = type(lab)(f"{lab.name}-2")
    try:
        other.testbed("up", 1)
        other.testbed("up", 1)
        assert other.net != lab.net
        assert other.ssh(1, "hostname") == "host1"
    finally:
        other.testbed("down")
    other.testbed("down")
    assert not other.dir.exists()
    assert lab.ssh(1, "hostname") == "host1"
