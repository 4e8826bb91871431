"""What srun is told of a container."""

import pytest

from distperf.recipe.scheduling import ContainerSection
from launcher.errors import UsageError
from launcher.slurm.container import options


def container(*mounts, more=()):
    return ContainerSection(image="nvcr.io#nvidia/pytorch:24.05-py3", mounts=mounts, options=more)


def test_none():
    """Without an image there is nothing to tell."""
    assert options(ContainerSection(), "/home/me/a b", "/home/me/runs") == []


@pytest.mark.parametrize(
    ("mounts", "told"),
    [
        ((), "/home/me:/home/me"),
        (("/data:/data:ro",), "/data:/data:ro,/home/me:/home/me"),
        (("/nfs/home:/home",), "/nfs/home:/home"),
        (("/nfs/home:/hom",), "/nfs/home:/hom,/home/me:/home/me"),
    ],
)
def test_the_folder_of_the_launch_is_seen_inside(mounts, told):
    """At its own path, but where a mount brings it already."""
    found = options(
        container(*mounts, more=("--container-writable",)), "/home/me", "/home/me/runs/r/checkpoints"
    )
    assert found == [
        "--container-image=nvcr.io#nvidia/pytorch:24.05-py3", f"--container-mounts={told}", "--container-writable",
    ]  # fmt: skip


def test_checkpoints_must_not_vanish_with_the_container():
    """A folder that only the container has is refused, with what is mounted."""
    with pytest.raises(UsageError, match=r"/big/run, which .* \(there are /home/me:/home/me\)"):
        options(container(), "/home/me", "/big/run")
    assert options(container("/lustre:/big"), "/home/me", "/big/run")


def test_a_folder_that_cannot_be_named_is_refused():
    """pyxis divides mounts at commas and colons; a mount under another name goes."""
    with pytest.raises(UsageError, match="comma"):
        options(container(), "/home/me/a,b", None)
    assert options(container("/home/me:/home/me"), "/home/me/a,b", None)
