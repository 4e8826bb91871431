"""What all tests share: an environment without another run's variables and without what was measured of this machine;
one process for the tests of a file.
"""

from __future__ import annotations

import os
import tempfile

import pytest
from hypothesis import settings

# How long an example takes says something of the machine, which others use too, and nothing of the code.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")

OTHERS = {"RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"}


def pytest_configure(config: pytest.Config) -> None:
    """A test does not depend on the launcher that may have started it, nor on a `distperf bench` of this machine."""
    cache = tempfile.TemporaryDirectory(prefix="distperf-tests-")
    config.add_cleanup(cache.cleanup)
    os.environ["XDG_CACHE_HOME"] = cache.name
    for name in list(os.environ):
        if name in OTHERS or name.startswith(("DISTPERF_", "TORCHELASTIC_", "SLURM_")):
            del os.environ[name]


@pytest.hookimpl(tryfirst=True)  # pytest-xdist writes groups into ids in a hook of the same name
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests of a file run on one worker: they share what it takes long to set up, a network of hosts for one."""
    for item in items:
        if item.get_closest_marker("xdist_group") is None:
            item.add_marker(pytest.mark.xdist_group(item.nodeid.split("::")[0]))
