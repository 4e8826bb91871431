import json
import os
import socket
import threading
from dataclasses import replace

import pytest

from launcher import control
from launcher.state import Policy, Rank, RunState


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "sockets"


def pong(request):
    request.answer({"did": request.do})


def say(path, data):
    """Speak to a socket without our own client."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(path)
        connection.sendall(data)
        connection.shutdown(socket.SHUT_WR)
        return connection.makefile("rb").readline()


def test_ask_and_answer(folder, tmp_path):
    """Requests arrive as they were made, are answered one by one, and nothing is left afterwards."""
    with control.listening(tmp_path / "run", pong, folder) as path:
        assert [control.ask(path, do) for do in control.DOINGS] == [{"did": do} for do in control.DOINGS]
    assert list(folder.iterdir()) == []
    with pytest.raises(FileNotFoundError):
        control.ask(path, "stop")


def test_sockets_of_the_dead_are_removed(folder, tmp_path):
    """The next controller of the user clears away what a killed one has left, and leaves living ones alone."""
    with control.listening(tmp_path / "alive", pong, folder) as alive:
        with socket.socket(socket.AF_UNIX) as killed:
            killed.bind(os.fspath(folder / "dead"))
        with control.listening(tmp_path / "run", pong, folder) as path:
            assert sorted(map(os.fspath, folder.iterdir())) == sorted([alive, path])
            assert control.ask(alive, "ping") == control.ask(path, "ping") == {"did": "ping"}


def test_only_the_user_can_get_at_it(folder, tmp_path):
    """Folder 0700 and socket 0600, whatever the umask."""
    before = os.umask(0)
    try:
        with control.listening(tmp_path / "run", pong, folder) as path:
            assert folder.stat().st_mode & 0o777 == 0o700
            assert os.stat(path).st_mode & 0o777 == 0o600
    finally:
        os.umask(before)


@pytest.mark.parametrize(
    "line", [b"", b"\n", b"stop\n", b"[]\n", b'{"do": "dance"}\n', b'{"do": ["stop"]}\n', b"\xff" * 5000]
)
def test_nonsense_does_nothing(folder, tmp_path, line):
    """Only a JSON object with a known `do` reaches the controller; the next asker is served as ever."""
    asked = []
    with control.listening(
        tmp_path / "run", lambda request: (asked.append(request.do), pong(request)), folder
    ) as path:
        assert "error" in json.loads(say(path, line))
        assert control.ask(path, "ping") == {"did": "ping"}
    assert asked == ["ping"]


def test_an_asker_that_leaves_is_no_obstacle(folder, tmp_path):
    """A connection closed before the answer, or before the question, disturbs nobody."""
    with control.listening(tmp_path / "run", pong, folder) as path:
        for data in (b"", b'{"do": "ping"}\n'):
            connection = socket.socket(socket.AF_UNIX)
            connection.connect(path)
            connection.sendall(data)
            connection.close()
        assert control.ask(path, "ping") == {"did": "ping"}


def test_a_controller_that_ends_before_it_answers(tmp_path):
    """The asker gets an empty answer, not an error and not a wait."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(os.fspath(tmp_path / "socket"))
        listener.listen()
        ending = threading.Thread(target=lambda: listener.accept()[0].close())
        ending.start()
        assert control.ask(os.fspath(tmp_path / "socket"), "stop") == {}
        ending.join()


def test_an_error_is_a_refusal(folder, tmp_path):
    """What the controller answers as an error is raised."""
    with (
        control.listening(tmp_path / "run", lambda r: r.answer({"error": "not you"}), folder) as path,
        pytest.raises(PermissionError, match="not you"),
    ):
        control.ask(path, "stop")


def test_who_may_ask():
    """The controller's own user, and root."""
    assert control.may_ask(1000, 1000)
    assert control.may_ask(0, 1000)
    assert not control.may_ask(1001, 1000)
    assert not control.may_ask(1000, 0)


def test_a_name_fits_and_is_the_runs_own(tmp_path):
    """However long a run's id and folder are, the path is below the limit of 104; equal ids elsewhere differ."""
    run = tmp_path / ("n" * 200 + "-20261130-101500-ab12")
    name = control.socket_name(run)
    assert len(os.fspath(control.socket_folder(4294967294) / name)) < 104
    assert name.startswith("20261130-101500-ab12-")
    assert name != control.socket_name(tmp_path / "other" / run.name)


def link(folder):
    (folder.parent / "elsewhere").mkdir(mode=0o700)
    folder.symlink_to(folder.parent / "elsewhere")


def file(folder):
    folder.touch(mode=0o600)


def open_to_the_group(folder):
    folder.mkdir()
    folder.chmod(0o770)


def of_another_user(folder):
    folder.mkdir(mode=0o700)
    if os.geteuid() != 0:
        pytest.skip("only root can give a folder away")
    os.chown(folder, 65534, 65534)


@pytest.mark.parametrize(
    ("prepare", "reason"),
    [(link, "not a folder"), (file, "not a folder"), (open_to_the_group, "has mode 770, not 700"),
     (of_another_user, "belongs to user 65534")],
)  # fmt: skip
def test_a_folder_that_is_not_ours_alone(folder, tmp_path, prepare, reason):
    """It is refused with the reason, and nothing is put there."""
    prepare(folder)
    with pytest.raises(PermissionError, match=reason), control.listening(tmp_path / "run", pong, folder):
        pass
    assert folder.is_file() or list(folder.iterdir()) == []


RANK = Rank(0, 0, "a", 0)
STATE = RunState("r", "r", Policy(1, 10, 25, 30, False), (RANK,), 9, {}, state="running", attempt=1)


def test_what_a_run_refuses():
    """A checkpoint is asked of ranks that train, and not of a script; the end of a run, always."""
    assert control.refusal("save", STATE) is None
    assert "is restarting" in control.refusal("save", replace(STATE, state="restarting"))
    script = replace(STATE, policy=replace(STATE.policy, script=True))
    assert "a script of yours" in control.refusal("save", script)
    assert control.refusal("profile", STATE, {"ranks": [0], "steps": 3}) is None
    for odd in ({}, {"ranks": [1], "steps": 3}, {"ranks": "0", "steps": 3}, {"ranks": [0], "steps": "3"}):
        assert "a trace wants" in control.refusal("profile", STATE, odd)
    assert control.refusal("stop", replace(script, state="stalled")) is None
