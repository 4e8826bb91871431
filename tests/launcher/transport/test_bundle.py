import ast
import shlex
import subprocess
import sys
import zlib
from pathlib import Path

import pytest

from launcher.transport import bundle


def source():
    return zlib.decompress(bundle.payload()[8:]).decode()


def test_command_holds_nothing_special():
    """One line that sh, csh and fish read alike: no quote but its own, no `!`, `$`, backslash, backtick or newline."""
    command = bundle.command()
    assert command.count("'") == 2
    assert not set(command) & set('!$\\`"\n')
    assert shlex.split(command)[1:] == bundle.argv("python3")


def test_payload_says_its_length():
    """Eight digits, then exactly that many bytes."""
    payload = bundle.payload()
    assert int(payload[:8]) == len(payload) - 8


def test_size_budget():
    """The agent stays small: it is sent to every node at every launch."""
    assert len(bundle.payload()) < 32_000


def test_what_is_left_out_are_docstrings_alone():
    """Code, comments and line numbers are those of the files."""
    for module in bundle._MODULES:
        whole = bundle._source(module)
        sent = bundle.without_docstrings(whole)
        assert sent.count("\n") == whole.count("\n")
        assert code_of(sent) == code_of(whole)


def code_of(source):
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)
            and ast.get_docstring(node) is not None
        ):
            node.body[0].value.value = ""
    return ast.dump(tree, include_attributes=False)


def test_all_agent_modules_are_shipped():
    """Nothing that the agent imports of ours is missing from the bundle, and nothing else comes with it."""
    wanted = {"launcher", "launcher.protocol"}
    import launcher

    folder = Path(launcher.__file__).parent / "agent"
    wanted |= {f"launcher.agent.{path.stem}" for path in folder.glob("*.py")} - {"launcher.agent.__init__"}
    assert set(bundle._MODULES) == wanted | {"launcher.agent"}


@pytest.mark.parametrize("module", bundle._MODULES)
def test_syntax_of_python_38(module):
    """A node's python3 may be old."""
    ast.parse(bundle._source(module), feature_version=(3, 8))


@pytest.mark.parametrize("module", bundle._MODULES)
def test_standard_library_only(module):
    """A node needs nothing installed."""
    for node in ast.walk(ast.parse(bundle._source(module))):
        names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
        names += [node.module] if isinstance(node, ast.ImportFrom) else []
        for name in names:
            assert name.split(".")[0] in sys.stdlib_module_names or name in bundle._MODULES


def test_no_secret_of_the_node_is_needed(tmp_path):
    """The first stage starts in an empty environment, in any folder, and ends quietly when nobody speaks."""
    done = subprocess.run(
        bundle.argv(sys.executable), input=bundle.payload() + b"0" * 32, env={}, cwd=tmp_path, capture_output=True, timeout=20  # noqa: E501
    )  # fmt: skip
    assert done.returncode == 0
    assert done.stderr == b""
    assert b"\0distperf " + b"0" * 32 + b"\n" in done.stdout
