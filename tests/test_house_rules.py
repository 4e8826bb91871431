"""The rules of the house, read off the sources: who may import what, how long things may get, what stays out."""

from __future__ import annotations

import ast
import functools
import graphlib
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from launcher.transport import bundle

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("distperf", "launcher")

# What the launcher may take from distperf: all of it loads without torch and numpy.
TORCH_FREE = (
    "distperf.recipe", "distperf.contract", "distperf.errors", "distperf.version",
    "distperf.checkpoint.manifest", "distperf.checkpoint.verify", "distperf.checkpoint.choose",
    "distperf.checkpoint.prune", "distperf.data.manifest",
)  # fmt: skip
SHIPPED = ("launcher.agent", "launcher.protocol")
# A rank's main (the runtime's, and that of a program run in a forked rank), the agent's, and the border to a
# dataset of the user's.
BROAD_EXCEPT = {
    ("distperf.data.own", "told"),
    ("distperf.train", "main"),
    ("launcher.agent.forker", "run_to_the_end"),
    ("launcher.agent.main", "run"),
}
# Where the runtime speaks: rank 0's lines, a rank's last words, and a command that a person calls.
SPEAKING = {
    "distperf.measure.progress",
    "distperf.failure",
    "distperf.data.prepare",
    "distperf.export",
    "distperf.generate",
}
BANNED_NAMES = {"utils", "util", "helpers", "common", "manager", "misc", "base"}
NAMED_ANYWAY = {"launcher.transport.base"}

MAX_FILE_LINES = 400
MAX_FUNCTION_LINES = 60
MAX_CONSTRUCTOR_LINES = 40
MAX_AGENT_BYTES = 32 << 10

Function = ast.FunctionDef | ast.AsyncFunctionDef


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_name(path): path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))}


@functools.cache
def tree(module: str) -> ast.Module:
    return ast.parse(MODULES[module].read_text())


def within(module: str, *prefixes: str) -> bool:
    return any(module == prefix or module.startswith(prefix + ".") for prefix in prefixes)


def imported(node: ast.AST) -> Iterator[str]:
    """Modules that an import statement names; `from x import y` is x.y where that is a module, else x."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        assert node.level == 0, "imports are absolute"
        for alias in node.names:
            inner = f"{node.module}.{alias.name}"
            yield inner if inner in MODULES else str(node.module)


def imports(module: str) -> set[str]:
    """Everything a module imports anywhere, inside functions and under TYPE_CHECKING too."""
    return {name for node in ast.walk(tree(module)) for name in imported(node)}


def imports_at_load(node: ast.AST) -> Iterator[str]:
    """What is imported when a module is loaded: not inside functions, not under TYPE_CHECKING."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, Function | ast.Lambda):
            continue
        if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.dump(child.test):
            continue
        yield from imported(child)
        yield from imports_at_load(child)


def functions() -> Iterator[tuple[str, Function]]:
    for module in MODULES:
        for node in ast.walk(tree(module)):
            if isinstance(node, Function):
                yield module, node


@functools.cache
def our_files() -> tuple[Path, ...]:
    """Files that are in git or could be added to it."""
    command = ["git", "-c", "safe.directory=*", "ls-files", "-co", "--exclude-standard", "-z"]
    names = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    return tuple(ROOT / name for name in names.split("\0") if name and (ROOT / name).is_file())


# Imports.


def test_launcher_takes_only_torch_free_parts_of_distperf():
    """The launcher imports of distperf what is listed here, and nothing else."""
    wrong = [
        f"{module} imports {name}"
        for module in MODULES
        if within(module, "launcher")
        for name in imports(module)
        if within(name, "distperf") and name != "distperf" and not within(name, *TORCH_FREE)
    ]
    assert wrong == []


def test_distperf_knows_no_launcher():
    """The runtime can be started by anything that keeps the contract: it never imports the launcher."""
    wrong = [m for m in MODULES if within(m, "distperf") and any(within(n, "launcher") for n in imports(m))]
    assert wrong == []


def test_launcher_loads_without_torch_and_numpy():
    """Loading every module of the launcher, and what it takes of distperf, loads neither torch nor numpy."""
    free = [name for name in MODULES if within(name, "launcher", *TORCH_FREE)]
    modules = [name for name in free if not name.endswith("__main__")]
    code = f"import sys\nfor m in {modules!r}: __import__(m)\nprint(*{{'torch', 'numpy'}} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, capture_output=True, text=True)
    assert done.stdout.strip() == ""


def test_no_import_cycle():
    """Modules can be put in an order in which each imports only earlier ones. Type-only imports do not count."""
    graph = {module: set(imports_at_load(tree(module))) & MODULES.keys() for module in MODULES}
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        pytest.fail(" <- ".join(error.args[1]))


def test_paramiko_stays_in_the_ssh_transport():
    """Only the SSH transport's own files import paramiko."""
    users = [m for m in MODULES if any(within(name, "paramiko") for name in imports(m))]
    assert [
        m for m in users if not m.startswith(("launcher.transport.ssh", "launcher.transport.openssh"))
    ] == []


# The agent.


@pytest.mark.parametrize("module", [name for name in MODULES if within(name, *SHIPPED)])
def test_shipped_code_needs_only_python_3_8(module: str):
    """What is shipped to nodes is Python 3.8 and imports the standard library and itself only."""
    ast.parse(MODULES[module].read_text(), feature_version=(3, 8))
    foreign = {n for n in imports(module) if n.split(".")[0] not in sys.stdlib_module_names}
    assert {name for name in foreign if not within(name, *SHIPPED)} == set()


def test_agent_stays_small():
    """The whole agent is sent to every node at every start, so its size has a limit."""
    assert len(bundle.payload()) <= MAX_AGENT_BYTES


# Sizes and names.


def test_files_stay_short():
    """A file that grows past this is two ideas."""
    lines = {path.relative_to(ROOT): len(path.read_text().splitlines()) for path in MODULES.values()}
    assert {str(path): n for path, n in lines.items() if n > MAX_FILE_LINES} == {}


def test_functions_stay_short():
    """In a function that grows past this, deciding and doing have grown together; constructors build even less."""
    long = []
    for module, function in functions():
        limit = MAX_CONSTRUCTOR_LINES if function.name == "__init__" else MAX_FUNCTION_LINES
        lines = (function.end_lineno or 0) - function.lineno + 1
        if lines > limit:
            long.append(f"{module}:{function.lineno} {function.name} has {lines} lines")
    assert long == []


def test_modules_are_named_for_what_they_do():
    """No module is a drawer for odds and ends."""
    assert [m for m in MODULES if m.rpartition(".")[2] in BANNED_NAMES and m not in NAMED_ANYWAY] == []


# Errors and output.


def test_broad_except_only_at_the_boundaries():
    """Everything else catches what it knows how to answer."""
    broad = {
        (module, function.name)
        for module, function in functions()
        for node in ast.walk(function)
        if isinstance(node, ast.ExceptHandler)
        and (node.type is None or re.search(r"'(Base)?Exception'", ast.dump(node.type)))
    }
    assert broad - BROAD_EXCEPT == set()


def test_runtime_prints_only_where_it_speaks():
    """A rank's output belongs to the user: the runtime prints in the places listed here only."""
    printing = {
        module
        for module in MODULES
        if within(module, "distperf")
        for node in ast.walk(tree(module))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print"
    }
    assert printing - SPEAKING == set()


def test_nothing_is_left_for_later():
    """What is not done is not in the code."""
    mark = re.compile("TO[D]O|FIX[M]E")
    sources = [path for path in our_files() if path.suffix == ".py" or path.parent.name == "scripts"]
    assert [str(path) for path in sources if mark.search(path.read_text())] == []


def test_no_path_of_the_machine_it_was_written_on():
    """Nothing in the project knows in which folder it lies."""
    here = re.compile(re.escape(str(ROOT)) + r"\b")
    files = our_files() if len(ROOT.parts) > 2 else ()  # "/src" would be found in too many words
    assert [path.name for path in files if here.search(path.read_text(errors="replace"))] == []


# Tests and documents.


def test_tests_mirror_the_code():
    """tests/F/test_X.py, or test_X_<what>.py, is about the folder F: its file X.py, its folder X, or X = F itself."""
    astray = []
    for package in PACKAGES:
        for path in (ROOT / "tests" / package).rglob("test_*.py"):
            folder, subject = ROOT / path.parent.relative_to(ROOT / "tests"), path.stem.removeprefix("test_")
            names = {module.stem for module in folder.iterdir()} | {folder.name}
            if not any(subject == name or subject.startswith(name + "_") for name in names):
                astray.append(str(path.relative_to(ROOT)))
    assert astray == []


def test_tests_are_no_packages():
    """An __init__.py under tests/ would hide the real packages of the same name."""
    assert list((ROOT / "tests").rglob("__init__.py")) == []


def listed_modules(tree: str) -> Iterator[str]:
    """Paths of the files in an indented listing: two spaces a level, folders end with a slash."""
    folders: list[str] = []
    for line in tree.splitlines():
        name = line.split()[0] if line.strip() else ""
        level = (len(line) - len(line.lstrip())) // 2
        if name.endswith("/"):
            folders = [*folders[:level], name]
        elif name:
            yield "".join(folders[:level]) + name


def test_architecture_lists_every_module():
    """docs/architecture.md has one line for each module, and for no other."""
    text = (ROOT / "docs" / "architecture.md").read_text().split("## Modules")[1].split("```")[1]
    there = {str(path.relative_to(ROOT)) for path in MODULES.values() if path.name != "__init__.py"}
    assert set(listed_modules(text)) == there


def anchors(markdown: str) -> set[str]:
    headings = re.findall(r"^#+ (.*)$", markdown, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading).strip().lower().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("path", [p for p in our_files() if p.suffix == ".md"], ids=lambda path: path.name)
def test_links_lead_somewhere(path: Path):
    """A relative link of a document names a file that is there, and a heading in it."""
    broken = []
    for link in re.findall(r"\]\(([^)\s]+)\)", path.read_text()):
        if "://" in link:
            continue
        name, _, anchor = link.partition("#")
        target = path.parent / name if name else path
        if not target.exists() or (anchor and anchor not in anchors(target.read_text())):
            broken.append(link)
    assert broken == []


def test_a_file_of_tests_stays_together(request):
    """It runs on one worker: pytest-xdist goes by the group that it finds in the id."""
    if "PYTEST_XDIST_WORKER" in os.environ and request.config.getoption("loadgroup"):
        assert request.node.nodeid.endswith("@tests/test_house_rules.py")
