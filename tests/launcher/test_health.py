from hypothesis import given
from hypothesis import strategies as st

from launcher import health
from launcher.health import MIB, Folder, Place

GIB = 1024 * MIB
CPU = Place(num_slots=2, num_devices=0, most_devices=0)


def space(free=100 * GIB, error=None):
    return {"at": "/data", "free_bytes": free, "total_bytes": 200 * GIB, "error": error}


def gpu(**changes):
    values = {
        "index": "0",
        "name": "H",
        "memory": "80000",
        "used": "0",
        "heat": "40",
        "ecc": "0",
        "driver": "1",
    }
    return list({**values, **changes}.values())


def warns(check):
    return check.ok and check.remedy is not None


def well(check):
    return check.ok and check.remedy is None


def test_disk():
    """No room for one checkpoint is a fault, for all that are kept a warning; a fault to write is one where needed."""
    folder = Folder("checkpoint", "/data/c", least_bytes=10 * GIB, wanted_bytes=40 * GIB)
    assert well(health.disk(folder, space()))
    assert warns(health.disk(folder, space(free=20 * GIB)))
    full = health.disk(folder, space(free=5 * GIB))
    assert not full.ok
    assert full.found == "5.0 GiB free of 200.0 GiB at /data"
    denied = health.disk(folder, space(error="Permission denied"))
    assert not denied.ok
    assert "Permission denied" in denied.found
    assert warns(health.disk(Folder("workdir", "/data", needed=False), space(error="Read-only file system")))


def test_shared_memory():
    """A container's 64 MiB ends a run of several devices on the node, and is a warning else."""
    assert well(health.shared_memory(space(), 8))
    assert warns(health.shared_memory(space(free=64 * MIB), 1))
    assert not health.shared_memory(space(free=64 * MIB), 2).ok


def test_limits():
    """Few open files are a fault; locked memory counts where there is RDMA."""
    assert well(health.open_files(None))
    assert well(health.open_files(1024))
    assert not health.open_files(256).ok
    assert well(health.locked_memory(65536, rdma=False))
    assert well(health.locked_memory(None, rdma=True))
    assert not health.locked_memory(65536, rdma=True).ok


def test_hostname():
    """A name that means loopback to its own node is named where there are other nodes; one true address will do."""
    assert warns(health.hostname("n1", ["127.0.1.1"], alone=False))
    assert "n1 is 127.0.1.1" in health.hostname("n1", ["127.0.1.1"], alone=False).found
    assert warns(health.hostname("n1", [], alone=False))
    assert well(health.hostname("n1", ["127.0.1.1"], alone=True))
    assert well(health.hostname("n1", ["127.0.1.1", "192.0.2.1"], alone=False))


def test_devices_and_slots():
    """A device for each slot where there are any; none on a node is a fault where the others have some."""
    assert [check.name for check in health.devices(None, CPU)] == ["devices"]
    assert well(health.enough_devices(CPU))
    assert not health.enough_devices(Place(2, 0, most_devices=8)).ok
    assert not health.enough_devices(Place(8, 7, most_devices=8)).ok
    assert well(health.enough_devices(Place(4, 8, most_devices=8)))
    assert well(health.enough_devices(Place(None, 8, most_devices=8)))


def test_device_health():
    """ECC errors are a fault, heat a warning; what a device does not tell is neither; a mute driver is a fault."""
    eight = Place(8, 8, 8)
    assert well(health.device_health([gpu(), gpu(index="1", ecc="[N/A]", heat="[Not Supported]")]))
    broken = health.device_health([gpu(), gpu(index="5", ecc="3")])
    assert not broken.ok
    assert "device 5" in broken.found
    assert warns(health.device_health([gpu(heat="93")]))
    mute = {"rows": [], "error": "Failed to initialize NVML: Driver/library version mismatch"}
    assert not health.devices(mute, eight)[1].ok
    assert warns(health.devices(mute, CPU)[1])
    assert warns(health.devices(None, eight)[1])
    assert all(well(check) for check in health.devices({"rows": [gpu()] * 8, "error": None}, eight))


def test_leftovers():
    """Processes are a fault that names run and pids; folders a warning."""
    left = [{"pid": 82, "token": "old-20260101-000000-abcd-0011223344556677-0", "command": "x"}]
    found = health.leftovers(left, ["/tmp/f"])
    assert not found.ok
    assert "old-20260101-000000-abcd: pid 82" in found.found
    assert "kill -9 82" in found.remedy
    assert warns(health.leftovers([], ["/tmp/f"]))
    assert well(health.leftovers([], []))


@given(st.floats(0, 100), st.floats(0, 1), st.floats(-1000, 1000))
def test_clock_never_overstates(sent_s, trip_s, skew_s):
    """However long the answer took on its way, the skew that is told is never more than the true one."""
    told = health.clock(asked=sent_s, answered=sent_s + 2 * trip_s, there=sent_s + trip_s + skew_s)
    if not told.ok:
        assert abs(skew_s) > health.SKEW_FAIL_S
    if told.remedy:
        assert abs(skew_s) > health.SKEW_WARN_S


def test_clock():
    """A second's difference is a warning, a minute's a fault, with its direction."""
    assert health.clock(100.0, 100.2, 100.1).found == "as here"
    assert warns(health.clock(100.0, 100.2, 105.2))
    assert health.clock(100.0, 100.2, 105.2).found == "5.0 s ahead"
    behind = health.clock(100.0, 100.2, 20.0)
    assert not behind.ok
    assert "behind" in behind.found


def test_network_names_the_pair():
    """Each node's row has whom it cannot reach, at which address, and why; equal reasons are told once."""
    where = {f"n{i}": f"192.0.2.{i}" for i in range(1, 5)}
    found = health.network(
        {
            "n1": {"n2": "no answer within 5 s", "n3": None, "n4": None},
            "n2": {"n1": "refused", "n3": "refused", "n4": None},
            "n3": {"n1": None, "n2": None, "n4": None},
        },
        where,
    )
    assert [found[host].ok for host in ("n1", "n2", "n3")] == [False, False, True]
    assert found["n1"].found == "cannot reach n2 at 192.0.2.2 (no answer within 5 s)"
    assert found["n2"].found == "cannot reach n[1,3] (refused)"
    assert "firewall" in found["n1"].remedy
