"""The agent as bytes: a fixed one-line first stage for the command line, and the code that follows on stdin.

    command line    python3 -ISuc 'read a length and that many bytes from stdin, decompress, run'
    stdin           length (8 digits)  zlib(agent)  nonce (32 characters)  frames ...

The command is the same for everybody and holds no user data, no character that any login shell treats specially
inside single quotes (csh: no `!`, no newline), so sh, bash, csh, tcsh, zsh and fish all run it alike. (One remote
interpreter fed over stdin is mitogen's idea.)
"""

from __future__ import annotations

import functools
import re
import secrets
import zlib
from collections.abc import Callable
from importlib import resources

# The code's own stdin buffer may hold no frame yet: the controller sends frames only after the marker line.
FIRST_STAGE = "import sys,zlib;f=sys.stdin.buffer;exec(zlib.decompress(f.read(int(f.read(8)))))"
FLAGS = ("-I", "-S", "-u")
NONCE_CHARS = 32

_MODULES = (
    "launcher",
    "launcher.protocol",
    "launcher.agent",
    "launcher.agent.facts",
    "launcher.agent.processes",
    "launcher.agent.spool",
    "launcher.agent.tier",
    "launcher.agent.forker",
    "launcher.agent.nursery",
    "launcher.agent.warm",
    "launcher.agent.stacks",
    "launcher.agent.memory",
    "launcher.agent.ranks",
    "launcher.agent.probes",
    "launcher.agent.stock",
    "launcher.agent.questions",
    "launcher.agent.nvidia",
    "launcher.agent.figures",
    "launcher.agent.traces",
    "launcher.agent.outbox",
    "launcher.agent.link",
    "launcher.agent.setup",
    "launcher.agent.loop",
    "launcher.agent.main",
)

_SECOND_STAGE = """
import sys
from types import ModuleType
from importlib.machinery import ModuleSpec
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name in SOURCES:
            return ModuleSpec(name, self, is_package=name in PACKAGES)
    def create_module(self, spec):
        return None
    def get_source(self, name):
        return SOURCES[name]
    def exec_module(self, module):
        exec(compile(SOURCES[module.__name__], module.__name__, "exec"), module.__dict__)
sys.meta_path.insert(0, Finder())
from launcher.agent.main import run
run(f.read(%d).decode("ascii"))
"""


def command(python: str = "python3") -> str:
    """The remote command line. `python` comes from the hostfile, whose grammar admits no shell character."""
    return f"exec {python} {' '.join(FLAGS)} -c '{FIRST_STAGE}'"


def argv(python: str) -> list[str]:
    """The same for a local start, without a shell."""
    return [python, *FLAGS, "-c", FIRST_STAGE]


def ship(write: Callable[[bytes], None]) -> str:
    """Send the agent to a first stage; returns the nonce by which its answer is known. Raises OSError."""
    nonce = secrets.token_hex(NONCE_CHARS // 2)
    write(payload() + nonce.encode("ascii"))
    return nonce


@functools.cache
def payload() -> bytes:
    """Length and compressed agent; the nonce follows it."""
    sources = {name: without_docstrings(_source(name)) for name in _MODULES}
    packages = [name for name in _MODULES if any(other.startswith(name + ".") for other in _MODULES)]
    code = f"SOURCES={sources!r}\nPACKAGES={packages!r}\n{_SECOND_STAGE % NONCE_CHARS}"
    packed = zlib.compress(code.encode(), 6)
    return b"%08d" % len(packed) + packed


_DOCSTRING = re.compile(r'(?:\A|(?<=:\n))( *)r?"""(?:[^"\\]|\\.|"{1,2}(?!"))*"""', re.DOTALL)


def without_docstrings(source: str) -> str:
    """What nobody reads on a node is not sent there: a quarter of the bytes. Lines keep their numbers."""
    return _DOCSTRING.sub(lambda found: found[1] + '""' + "\n" * found[0].count("\n"), source)


def _source(module: str) -> str:
    root = resources.files("launcher")
    path = root.joinpath(*module.split(".")[1:])
    file = path / "__init__.py" if path.is_dir() else path.with_name(path.name + ".py")  # type: ignore[attr-defined]
    return str(file.read_text(encoding="utf-8"))
