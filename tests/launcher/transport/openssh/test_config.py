from __future__ import annotations

import os
import pwd
import shutil

import pytest

from launcher.errors import ConnectFailed
from launcher.transport.openssh.config import SshConfig, ask_ssh, make_target, read, split_jump, ssh_command

HOME = pwd.getpwuid(os.getuid()).pw_dir
needs_ssh = pytest.mark.skipif(shutil.which("ssh") is None, reason="needs the ssh program")


@pytest.fixture
def field_report(tmp_path):
    """paramiko#1044, #1992: an Include, a Match that does not apply, a pattern with a port."""
    (tmp_path / "nodes.conf").write_text("Host gpu-a\n  HostName 192.0.2.7\n  IdentityFile ~/.ssh/id_gpu\n")
    config = tmp_path / "config"
    config.write_text(
        f'Include {tmp_path}/*.conf\nMatch exec "false"\n  ProxyJump bastion\nHost gpu-*\n  Port 2222\n'
    )
    return config


@needs_ssh
def test_means_what_it_means_to_ssh(field_report):
    """B07: included files, Match and patterns give host name, key and port as `ssh -G` does, and no jump."""
    (target,) = SshConfig(str(field_report)).route("gpu-a")
    assert (target.hostname, target.port, target.jumps) == ("192.0.2.7", 2222, ())
    assert target.keys == (f"{HOME}/.ssh/id_gpu",)


@needs_ssh
@pytest.mark.parametrize("name", ["gpu-a", "plain", "hop", "odd", "2001:db8::7"])
def test_the_reader_for_machines_without_ssh_agrees_with_ssh(tmp_path, name):
    """On Host and Include lines, both ways of reading a configuration lead to the same target."""
    (tmp_path / "more.conf").write_text("Host gpu-*\n  HostName %h.cluster\nHost *\n  ConnectTimeout=7\n")
    config = tmp_path / "config"
    config.write_text(
        f"# nodes\nInclude {tmp_path}/more.conf\n"
        "Host gpu-* !gpu-b\n  User train\n  Port 2222\n  IdentityFile ~/.ssh/%n-%r\n  IdentityFile %d/k2\n"
        "Host hop\n  ProxyJump a,u@[2001:db8::1]:2200\n  StrictHostKeyChecking accept-new\n"
        "Host odd\n  ProxyCommand nc -X 5 %h %p\n  HostKeyAlias real\n  IdentitiesOnly yes\n  IdentityAgent none\n"
        "Match all\n  AddressFamily inet\n  UserKnownHostsFile ~/.ssh/kh1 /etc/kh2\n  GlobalKnownHostsFile none\n"
        "Host *\n  IdentityFile ~/.ssh/last\n"
    )
    assert make_target(name, read(name, [], str(config))) == make_target(name, ask_ssh(name, [], str(config)))


def test_match_is_not_guessed_at_without_ssh(field_report):
    """A condition that only ssh can evaluate is refused with its place, never taken as true or false."""
    with pytest.raises(ConnectFailed, match=r"config:2: only ssh can evaluate Match"):
        read("gpu-a", [], str(field_report))


@needs_ssh
def test_what_ssh_refuses_is_refused_in_its_words(tmp_path):
    """A mistake in the configuration is an error that names file and line."""
    config = tmp_path / "config"
    config.write_text("Host *\n  HostNam x\n")
    with pytest.raises(ConnectFailed, match=r"config: line 2: Bad configuration option: hostnam"):
        SshConfig(str(config)).route("gpu-a")


@needs_ssh
def test_hostfile_wins_over_options_and_options_over_the_file(field_report):
    """user@ and port= of the hostfile come first, then `-o`, then the configuration."""
    config = SshConfig(str(field_report), (("ConnectTimeout", "3"), ("Port", "4"), ("User", "o")))
    (target,) = config.route("gpu-a", "train", 5)
    assert (target.user, target.port, target.connect_timeout_s) == ("train", 5, 3.0)
    (target,) = config.route("gpu-a")
    assert (target.user, target.port) == ("o", 4)


@needs_ssh
def test_jump_hosts_have_their_own_configuration(tmp_path):
    """A chain of jumps is resolved hop by hop, each with its own user, port and key, and its own jumps."""
    config = tmp_path / "config"
    config.write_text(
        "Host inner\n  ProxyJump mid,near@last:23\nHost mid\n  ProxyJump outer\n  IdentityFile /k/mid\n"
        "Host last\n  HostName 192.0.2.9\n  ProxyJump ignored\n"
    )
    route = SshConfig(str(config), (("User", "u"),)).route("inner")
    assert [hop.name for hop in route] == ["outer", "mid", "last", "inner"]
    assert [hop.keys[0] for hop in route][1] == "/k/mid"
    assert (route[2].user, route[2].hostname, route[2].port) == ("near", "192.0.2.9", 23)
    assert [hop.user == "u" for hop in route] == [False, False, False, True]


@needs_ssh
def test_jumps_in_circles_are_refused(tmp_path):
    """Two hosts that jump through each other are an error, not a hang."""
    config = tmp_path / "config"
    config.write_text("Host a\n  ProxyJump b\nHost b\n  ProxyJump a\n")
    with pytest.raises(ConnectFailed, match="circles"):
        SshConfig(str(config)).route("a")


def test_tokens_and_defaults():
    """%-tokens, ~ and variables are expanded; "none" switches a thing off."""
    pairs = [
        ("hostname", "192.0.2.1"),
        ("port", "2022"),
        ("user", "train"),
        ("identityfile", "~/%r@%n-%h:%p%%"),
        ("proxycommand", "nc %h %p"),
        ("proxyjump", "none"),
        ("identityagent", "none"),
    ]
    target = make_target("gpu-a", pairs)
    assert target.keys == (f"{HOME}/train@gpu-a-192.0.2.1:2022%",)
    assert (target.proxy_command, target.jumps, target.agent) == ("nc 192.0.2.1 2022", (), None)
    plain = make_target("gpu-a", [])
    assert (plain.hostname, plain.port, plain.user) == ("gpu-a", 22, pwd.getpwuid(os.getuid()).pw_name)
    assert plain.accept_new is False
    assert f"{HOME}/.ssh/known_hosts" in plain.known_hosts


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a", ("a", None, None)),
        ("u@a:23", ("a", "u", 23)),
        ("[2001:db8::1]:23", ("2001:db8::1", None, 23)),
        ("u@2001:db8::1", ("2001:db8::1", "u", None)),
        ("ssh://u@a:23/", ("a", "u", 23)),
    ],
)
def test_jump_notation(text, expected):
    """The forms that ssh_config(5) allows in ProxyJump."""
    assert split_jump(text) == expected


def test_user_options_are_added_to_our_defaults():
    """The command for the user to try holds both, and the user's value of an option that both set."""
    config = SshConfig("/c", (("ConnectTimeout", "3"),))
    command = ssh_command(config, "gpu-a", "train", 22, [("BatchMode", "yes"), ("ConnectTimeout", "10")])
    assert command == [
        "ssh",
        "-F",
        "/c",
        "-l",
        "train",
        "-p",
        "22",
        "-o",
        "ConnectTimeout=3",
        "-o",
        "BatchMode=yes",
        "gpu-a",
    ]
