import pytest
import torch

from distperf.errors import DistperfError
from distperf.parallel.compiled import compile_blocks, missing_tools


def test_a_machine_without_a_compiler_is_refused_before_the_first_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The message names what is missing, for the CPU and for GPUs, and the key."""
    monkeypatch.setenv("CXX", "no-such-compiler")
    monkeypatch.setenv("CC", "no-such-compiler")
    for device, what in (("cpu", r"a C\+\+ compiler \(no-such-compiler; CXX"), ("cuda", "a C compiler")):
        with pytest.raises(DistperfError, match=rf"train\.compile: .* for {device} and lacks {what}"):
            compile_blocks(torch.nn.Linear(2, 2), torch.device(device))


def test_the_compiler_of_the_environment_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """CXX names another than g++, as for torch itself."""
    monkeypatch.setenv("CXX", "sh")
    assert not [what for what in missing_tools(torch.device("cpu")) if "compiler" in what]
