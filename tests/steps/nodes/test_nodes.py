"""GRPO on several machines that share nothing: they come together, train one policy, and end together; here each is a process."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest
from killed_runs import EVERYTHING, ROLLBACK, Result, result_of

import steps.nodes.sockets
from steps.nodes.sockets import NodeListener, NodesError, candidate_ports, connect_to_main, free_port

DRIVER = Path(__file__).with_name("nodes_driver.py")
PATHS = os.pathsep.join(map(str, (DRIVER.parents[3], DRIVER.parents[2] / "grpo", DRIVER.parents[1] / "bodies")))


class Driver:
    """A process that has imported everything, and forks two nodes that fine-tune together for each job."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(DRIVER)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": PATHS, "OMP_NUM_THREADS": "1"},
        )
        self._num_attempts = 0

    def start(self, folder: Path, *deeds: dict[str, Any], **shared: Any) -> list[int]:
        """Start both, each with what it alone shall do, and return their process ids."""
        assert self._process.stdin is not None
        self._num_attempts += 1
        jobs = [
            {
                "home": str(folder / f"node {index}"),
                "index": index,
                "count": 2,
                "attempt": f"{os.getpid()} {self._num_attempts}",
                **shared,
                **(deeds[index] if index < len(deeds) else {}),
            }
            for index in range(2)
        ]
        self._process.stdin.write(json.dumps(jobs) + "\n")
        self._process.stdin.flush()
        return self._answer()

    def end(self) -> list[int]:
        """Wait until both have ended, and return how."""
        return self._answer()

    def run(self, folder: Path, *deeds: dict[str, Any], **shared: Any) -> list[int]:
        """Run both to their end."""
        self.start(folder, *deeds, **shared)
        return self.end()

    def close(self) -> None:
        """End the process."""
        self._process.communicate(timeout=60)

    def _answer(self) -> list[int]:
        assert self._process.stdout is not None
        return [int(number) for number in json.loads(self._process.stdout.readline())]


@pytest.fixture(scope="module")
def driver() -> Iterator[Driver]:
    driver = Driver()
    yield driver
    driver.close()


def log_of(folder: Path, index: int) -> str:
    return (folder / f"node {index}.log").read_text()


@pytest.fixture(scope="module")
def whole(driver: Driver, tmp_path_factory: pytest.TempPathFactory) -> Result:
    """What two nodes make that nothing happens to."""
    folder = tmp_path_factory.mktemp("whole")
    assert driver.run(folder) == [0, 0], log_of(folder, 0) + log_of(folder, 1)
    assert log_of(folder, 0).splitlines()[-1] == log_of(folder, 1).splitlines()[-1], "both are told of the output"
    assert not list((folder / "node 1").iterdir()), "node 1 keeps nothing"
    return result_of(folder / "node 0")


# Training.


def test_only_the_first_process_plays_the_games_of_the_strength_curve(driver: Driver, whole: Result, tmp_path: Path) -> None:
    assert driver.run(tmp_path, plays=True) == [0, 0], log_of(tmp_path, 0) + log_of(tmp_path, 1)
    assert (tmp_path / "node 0" / "played.txt").read_text().split() == ["0", "2", "4", "6"]
    assert not (tmp_path / "node 1" / "played.txt").exists()
    assert result_of(tmp_path / "node 0") == whole


KILLED = -signal.SIGKILL


def rare(*values: Any) -> Any:
    """Return a case for `make prove`."""
    return pytest.param(*values, marks=pytest.mark.prove)


@pytest.mark.parametrize(
    ("index", "deed", "statuses"),
    [
        rare(1, {"deed": "kill", "place": "step", "step": 4}, [75, KILLED]),
        (0, {"deed": "kill", "place": "step", "step": 4}, [KILLED, 75]),
        (1, {"deed": "terminate", "place": "step", "step": 6}, [75, 75]),
        rare(0, {"deed": "terminate", "place": "step", "step": 6}, [75, 75]),
        rare(0, {"deed": "kill", "place": "checkpoint", "step": 2}, [KILLED, 75]),
        rare(1, {"deed": "kill", "place": "beginning"}, [75, KILLED]),
        rare(0, {"deed": "terminate", "place": "beginning"}, [75, 75]),
    ],
)
def test_a_node_is_lost_and_all_end_and_go_on_as_if_nothing_had_happened(
    index: int, deed: dict[str, Any], statuses: list[int], driver: Driver, whole: Result, tmp_path: Path
) -> None:
    deeds: list[dict[str, Any]] = [{}, {}]
    deeds[index] = deed
    assert driver.run(tmp_path, *deeds) == statuses, log_of(tmp_path, 0) + log_of(tmp_path, 1)
    if deed.get("deed") == "terminate" and deed["place"] == "step":
        assert "resumes from step 5," in log_of(tmp_path, 0), "no step that was finished is lost"
        # Whose end the other hears of first is a matter of who is faster: the told one's, or its own loss of it.
        assert index == 0 or "ended: it got SIGTERM, or lost another node" in log_of(tmp_path, 0)
    assert driver.run(tmp_path) == [0, 0], log_of(tmp_path, 0) + log_of(tmp_path, 1)
    if deed["place"] != "beginning":
        assert "resuming from step" in log_of(tmp_path, 0)
    assert result_of(tmp_path / "node 0") == whole


@pytest.mark.parametrize("index", [0, 1])
@pytest.mark.parametrize(
    ("place", "deed", "status", "why"),
    [
        ("step", "fail", 202, "the weights are spoilt"),
        ("beginning", "fail", 202, "the weights are spoilt"),
        rare("step", "stumble", 1, "ZeroDivisionError"),
        ("beginning", "stumble", 1, "ZeroDivisionError"),
    ],
)
def test_what_no_other_try_would_mend_is_final_on_all_nodes(
    index: int, place: str, deed: str, status: int, why: str, driver: Driver, tmp_path: Path
) -> None:
    deeds: list[dict[str, Any]] = [{}, {}]
    deeds[index] = {"deed": deed, "place": place, "step": 3}
    statuses = driver.run(tmp_path, *deeds)
    assert statuses[index] == status
    assert statuses[1 - index] == 202
    assert f"finetune: node {index} ended: " in log_of(tmp_path, 1 - index)
    assert why in log_of(tmp_path, 1 - index)


@pytest.mark.prove
def test_a_node_that_hangs_ends_the_others_when_their_patience_ends(driver: Driver, whole: Result, tmp_path: Path) -> None:
    processes = driver.start(tmp_path, {}, {"deed": "stop", "place": "step", "step": 6}, patience=10)
    until = time.monotonic() + 120
    while not (tmp_path / "node 0.log").exists() or "resumes from step 5," not in log_of(tmp_path, 0):
        assert time.monotonic() < until
        time.sleep(0.1)
    os.kill(processes[1], signal.SIGKILL)
    assert driver.end() == [75, KILLED]
    assert driver.run(tmp_path) == [0, 0]
    assert result_of(tmp_path / "node 0") == whole


@pytest.mark.parametrize("config", [ROLLBACK, pytest.param(EVERYTHING, marks=pytest.mark.prove)], ids=["rollback", "everything"])
def test_all_that_a_checkpoint_holds_comes_to_nodes_that_cannot_read_it(config: dict[str, Any], driver: Driver, tmp_path: Path) -> None:
    config = {"num_steps": 12, **config}
    assert driver.run(tmp_path / "whole", config=config) == [0, 0], log_of(tmp_path / "whole", 1)
    assert driver.run(tmp_path / "killed", {}, {"deed": "kill", "place": "step", "step": 8}, config=config) == [75, KILLED]
    assert driver.run(tmp_path / "killed", config=config) == [0, 0]
    found = result_of(tmp_path / "killed" / "node 0")
    assert found == result_of(tmp_path / "whole" / "node 0")
    assert found.history.count(b'"rolled_back"') == (2 if "recovery" in config else 0)


def test_machines_that_are_unlike_do_not_train_together(driver: Driver, tmp_path: Path) -> None:
    assert driver.run(tmp_path, {}, {"engine": "Stockfish 17"}) == [202, 202]
    assert "engine: Stockfish on node 0, Stockfish 17 there" in log_of(tmp_path, 0)
    assert "give the queue machines of one kind" in log_of(tmp_path, 1)


# Coming together.


def test_the_ports_are_the_same_everywhere_and_others_for_another_attempt() -> None:
    assert candidate_ports("run/finetune/0") == candidate_ports("run/finetune/0")
    assert not set(candidate_ports("run/finetune/0")) & set(candidate_ports("run/finetune/1"))


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    return f"{os.getpid()} {request.node.name}"


def test_a_port_that_another_has_is_passed_by_on_both_sides(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steps.nodes.sockets, "_HANDSHAKE_SECONDS", 0.2)
    silent, chatty = (socket.create_server(("127.0.0.1", port)) for port in candidate_ports(name)[:2])

    def chat() -> None:
        connection, _ = chatty.accept()
        with connection:
            connection.sendall(b"220 mail ready\r\n")

    thread = threading.Thread(target=chat, daemon=True)
    thread.start()
    with silent, chatty, NodeListener.opened("127.0.0.1", name) as listener:
        found: list[Any] = []
        other = threading.Thread(target=lambda: found.append(connect_to_main("127.0.0.1", name, 1, seconds=20)))
        other.start()
        [connection] = listener.accept_all(2, seconds=20).values()
        other.join()
        with closing(connection), closing(found[0]):
            connection.send({"is": "hello"})
            assert found[0].read(5) == {"is": "hello"}
    thread.join()


def test_strangers_at_the_door_are_sent_away_and_a_node_that_comes_again_is_taken(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steps.nodes.sockets, "_HANDSHAKE_SECONDS", 0.2)
    hellos = [{"name": "another run", "node": 1}, {"name": name, "node": 5}, {"name": name}]
    words = [b"GET / HTTP/1.1\r\n\r\n", b"[1]\n", b"", *(f"{json.dumps(one)}\n".encode() for one in hellos)]
    nodes = [1, 1, 2]
    with NodeListener.opened("127.0.0.1", name) as listener, ExitStack() as stack:
        comers = []
        for word in (*words, *(f'{{"name": "{name}", "node": {node}}}\n'.encode() for node in nodes)):
            comers.append(stack.enter_context(socket.create_connection(("127.0.0.1", candidate_ports(name)[0]))))
            comers[-1].sendall(word)
        connections = listener.accept_all(3, seconds=20)
        assert sorted(connections) == [1, 2]
        for connection in connections.values():
            connection.send({"is": "hello"})
            stack.enter_context(closing(connection))
        strangers, (impatient, *taken) = comers[: len(words)], [comer.makefile() for comer in comers[len(words) :]]
        assert [stranger.recv(100) for stranger in strangers] == [b""] * len(words)
        assert len(impatient.readlines()) == 1, "welcomed, and left when it came again"
        for file in taken:
            assert [json.loads(file.readline()) for _ in range(2)] == [{"name": name}, {"is": "hello"}]
        for file in (impatient, *taken):
            file.close()


def test_who_waits_in_vain_says_for_whom(name: str) -> None:
    with (
        NodeListener.opened("127.0.0.1", name) as listener,
        pytest.raises(NodesError, match=r"waited 0.1 s, but node 1, 2 did not connect"),
    ):
        listener.accept_all(3, seconds=0.1)
    with pytest.raises(NodesError, match=r"node 2 found no node 0 at 127.0.0.1, ports \d+, .* in 0.1 s"):
        connect_to_main("127.0.0.1", name, 2, seconds=0.1)


def test_where_all_ports_are_taken_it_says_so(name: str) -> None:
    taken = [socket.create_server(("", port)) for port in candidate_ports(name)]
    with pytest.raises(NodesError, match="are all in use on node 0"), NodeListener.opened("", name):
        pass
    assert free_port(name) not in candidate_ports(name)
    for one in taken:
        one.close()
