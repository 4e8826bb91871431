"""`distperf check` over real SSH: what is wrong is named with its host, and what is right is not."""

from __future__ import annotations

import json
import signal
import subprocess
import sys

import pytest
from integration.launches import RECIPE, distperf, start

pytestmark = [pytest.mark.lab, pytest.mark.slow]
LAB_HOSTS = 3
HOSTS = "host1 slots=1\nhost2 slots=1\nhost3 slots=1\n"


@pytest.fixture
def place(lab, request, monkeypatch):
    """A folder that this machine and all hosts see at the same path, with the recipe and a hostfile."""
    folder = lab.dir / "shared" / request.node.name
    folder.mkdir(mode=0o777)
    folder.chmod(0o777)
    (folder / "recipe.yaml").write_text(RECIPE)
    (folder / "hosts").write_text(HOSTS)
    monkeypatch.setenv("DISTPERF_SSH_CONFIG", str(lab.dir / "ssh_config"))
    return folder


def check(place, *args):
    """Exit code, and {host: {check name: check}}."""
    done = distperf(place, "check", "--hosts", "hosts", "--json", *args)
    assert done.stdout, done.stderr
    hosts = json.loads(done.stdout)["hosts"]
    found = {host["host"]: {check["name"]: check for check in host["checks"]} for host in hosts}
    for host in hosts:
        assert host["ok"] == all(check["ok"] for check in host["checks"])
        assert all(check["remedy"] for check in host["checks"] if not check["ok"])
    return done.returncode, found


def faults(found):
    return {
        (host, name) for host, checks in found.items() for name, check in checks.items() if not check["ok"]
    }


def test_three_good_hosts(lab, place):
    """All is well, beside a run that goes on meanwhile; ranks met over gloo, and nothing is left in the folder."""
    (place / "wait.py").write_text("import time\nprint('here', flush=True)\ntime.sleep(120)\n")
    (place / "one").write_text("host1 slots=1\n")
    (place / "hosts").write_text("host1\nhost2 slots=2\nhost3\n")  # two are asked for their slots
    run = start(place, "--script", "wait.py", "--hosts", "one")
    run.until(lambda status: status["state"] == "running")
    code, found = check(place, "recipe.yaml")
    run.process.send_signal(signal.SIGINT)
    run.end()
    assert (code, faults(found)) == (0, set())
    assert list(found) == ["host1", "host2", "host3"]
    for k, host in enumerate(found, start=1):
        assert f"{lab.address(k)} on eth0" in found[host]["address"]["found"]
        assert found[host]["all_to_all"]["found"].startswith("gloo, 3 ranks")
        assert found[host]["leftovers"]["found"] == "none"
        assert {"reach", "python", "torch", "distperf", "clock", "network"} <= set(found[host])
    assert not (place / "checkpoints").exists()


def test_a_dead_host_is_a_row(lab, place):
    """Exit code 3; the dead host says why, the others are checked as ever."""
    (place / "hosts").write_text(f"host1 slots=1\nhost2 slots=1\n{lab.address(200)} slots=1\n")
    code, found = check(place)
    assert code == 3
    assert faults(found) == {(lab.address(200), "reach")}
    assert lab.address(200) in found[lab.address(200)]["reach"]["remedy"]
    assert found["host1"]["network"]["found"] == "reaches 1 other node"
    text = distperf(place, "check", "--hosts", "hosts").stdout.splitlines()
    assert text[-1] == f"1 of 3 hosts cannot take part: {lab.address(200)}"


def test_a_firewall_between_two_hosts(lab, place):
    """All but SSH is dropped from host2 to host1: the pair is named from both sides, host3 is well."""
    rule = ["INPUT", "-p", "tcp", "-s", lab.address(2), "!", "--dport", "22", "-j", "DROP"]
    here = ["ip", "netns", "exec", f"dp{lab.net}-h1", "iptables"]
    subprocess.run([*here, "-A", *rule], check=True, timeout=10)
    try:
        code, found = check(place)
    finally:
        subprocess.run([*here, "-D", *rule], check=True, timeout=10)
    assert (code, faults(found)) == (4, {("host1", "network"), ("host2", "network")})
    assert f"host1 at {lab.address(1)}" in found["host2"]["network"]["found"]
    assert "firewall" in found["host2"]["network"]["remedy"]


def test_interpreters_and_folders(place):
    """A folder, an interpreter and a module that are not there: each with its host; `launch` says the same."""
    (place / "bare").write_text('#!/bin/sh\nexec /usr/bin/python3 -S "$@"\n')
    (place / "bare").chmod(0o755)
    (place / "hosts").write_text(
        f"host1 slots=1 workdir=/nowhere\nhost2 slots=1\nhost3 slots=1 python={place}/bare\n"
    )
    flags = ("recipe.yaml", "--set", "launch.python=/opt/none")
    code, found = check(place, *flags)
    bad = {("host1", "workdir"), ("host2", "python"), ("host3", "torch"), ("host3", "distperf")}
    assert (code, faults(found)) == (4, bad)
    assert "/nowhere" in found["host1"]["workdir"]["found"]
    run = start(place, *flags, "--hosts", "hosts")
    _, err = run.end()
    assert run.process.returncode == 4
    for host, name in bad:
        assert f"{host}: {found[host][name]['found']}: {found[host][name]['remedy']}" in err


def test_scripts_need_no_torch(place):
    """Without a recipe a python without torch on all nodes is a warning, and no rank is started."""
    (place / "bare").write_text('#!/bin/sh\nexec /usr/bin/python3 -S "$@"\n')
    (place / "bare").chmod(0o755)
    code, found = check(place, "--set", f"launch.python={place}/bare")
    assert (code, faults(found)) == (0, set())
    assert found["host1"]["torch"]["remedy"]
    assert "all_to_all" not in found["host1"]


def test_version_skew(place):
    """A distperf of another version on one node: both versions are told."""
    (place / "site" / "distperf-0.0.1.dist-info").mkdir(parents=True)
    (place / "site" / "distperf-0.0.1.dist-info" / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: distperf\nVersion: 0.0.1\n"
    )
    (place / "other").write_text(f'#!/bin/sh\nPYTHONPATH={place}/site exec {sys.executable} "$@"\n')
    (place / "other").chmod(0o755)
    (place / "hosts").write_text(f"host1 slots=1\nhost2 slots=1 python={place}/other\n")
    code, found = check(place, "recipe.yaml")
    assert (code, faults(found)) == (4, {("host2", "distperf")})
    assert "0.0.1" in found["host2"]["distperf"]["found"]
    assert found["host2"]["distperf"]["wanted"] == found["host1"]["distperf"]["found"]


def test_leftovers_names_and_disks(lab, place):
    """A process and a folder of an ended run, a name that means loopback, and a full disk."""
    token = "old-20260101-000000-abcd-0011223344556677-0"
    pid = lab.ssh(
        1, f"mkdir /tmp/distperf-old-20260101-000000-abcd-abcdefgh; DISTPERF_JOB_TOKEN={token} "
        "setsid sleep 300 >/dev/null 2>&1 </dev/null & echo $!",
    )  # fmt: skip
    lab.ssh(2, "echo 127.0.1.1 host2 >>/etc/hosts; sed -i '/198.*host2$/d' /etc/hosts", user="root")
    lab.ssh(
        3,
        "mkdir -m 777 /var/tmp/runs; dd if=/dev/zero of=/var/tmp/fill bs=1M 2>/dev/null || true",
        user="root",
    )
    (place / "hosts").write_text(HOSTS.replace("host3 slots=1", "host3 slots=1 workdir=/var/tmp/runs"))
    code, found = check(place, "recipe.yaml", "--set", "checkpoint.dir=/var/tmp/runs")
    assert code == 4
    assert found["host1"]["leftovers"]["found"].startswith(
        f"processes of old-20260101-000000-abcd: pid {pid}"
    )
    assert "/tmp/distperf-old-" in found["host1"]["leftovers"]["found"]
    assert "host2 is 127.0.1.1" in found["host2"]["hostname"]["found"]
    assert found["host2"]["hostname"]["remedy"]
    assert "No space left on device" in found["host3"]["disk_checkpoint"]["found"]
    assert ("host2", "checkpoint_dir") in faults(found)
    lab.ssh(1, f"kill {pid}")
    lab.ssh(3, "rm /var/tmp/fill", user="root")
