"""GRPO on several machines that share nothing: they come together, train one policy, and end together; here each is a process."""

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from forking import Forks
from killed_runs import EVERYTHING, ROLLBACK, Result, result_of
from torch.distributed.elastic.multiprocessing import SignalException
from torch.distributed.elastic.multiprocessing.errors import ProcessFailure

import steps.nodes.membership
from grpo.base.files import StorageError
from grpo.learning.distributed import LostProcessError
from steps.nodes.launch import _interruptible, ending_of
from steps.nodes.membership import Ending, Membership, NodesError
from steps.nodes.node import LOOPBACK, Node
from steps.nodes.worker import exit_code, final_reason
from steps.runtime.sigterm import Terminated, terminable

DRIVER = Path(__file__).with_name("nodes_driver.py")
PATHS = os.pathsep.join(map(str, (DRIVER.parents[3], DRIVER.parents[2] / "grpo", DRIVER.parents[1], DRIVER.parents[1] / "bodies")))
TRAINING, IDLE = "training_process.py", "idle_process.py"


class Driver(Forks):
    """A process that has imported everything, and forks the step processes of two nodes for each job."""

    def __init__(self) -> None:
        super().__init__([sys.executable, str(DRIVER)], env={**os.environ, "PYTHONPATH": PATHS, "OMP_NUM_THREADS": "1"})
        self._num_attempts = 0

    def run(self, folder: Path, *deeds: dict[str, Any], program: str = TRAINING, **shared: Any) -> list[int]:
        """Run both to their end, each with what it alone shall do, and return how they ended."""
        self._num_attempts += 1
        attempt = f"{os.getpid()} {self._num_attempts}"
        at_work = []
        for index in range(2):
            home, log = folder / f"node {index}", folder / f"node {index}.log"
            home.mkdir(parents=True, exist_ok=True)
            log.write_text("")
            job = {"index": index, "count": 2, "attempt": attempt, "program": program, **shared, **(deeds[index] if deeds else {})}
            at_work.append(self.fork(home=str(home), log=str(log), **job))
        return [self.wait(pid) for pid in at_work]


@pytest.fixture(scope="module")
def driver() -> Iterator[Driver]:
    driver = Driver()
    yield driver
    driver.close()


def log_of(folder: Path, index: int) -> str:
    return (folder / f"node {index}.log").read_text()


def logs_of(folder: Path) -> str:
    return log_of(folder, 0) + log_of(folder, 1)


@pytest.fixture(scope="module")
def whole(driver: Driver, tmp_path_factory: pytest.TempPathFactory) -> Result:
    """What two nodes make that nothing happens to."""
    folder = tmp_path_factory.mktemp("whole")
    assert driver.run(folder) == [0, 0], logs_of(folder)
    assert not list((folder / "node 1").iterdir()), "node 1 keeps nothing"
    return result_of(folder / "node 0")


KILLED = -signal.SIGKILL


def rare(*values: Any) -> Any:
    """Return a case for `make prove`."""
    return pytest.param(*values, marks=pytest.mark.prove)


# Training.


@dataclass(frozen=True, kw_only=True)
class Fault:
    """What happens to one node."""

    index: int
    deed: str
    place: str = "step"
    step: int
    why: str


KILLED_0 = Fault(index=0, deed="kill", step=4, why="process 0 was ended by SIGKILL")
RECLAIMED_1 = Fault(index=1, deed="terminate the step", step=6, why="it got SIGTERM")


@pytest.mark.parametrize(
    "faults",
    [
        (RECLAIMED_1,),
        rare((KILLED_0, RECLAIMED_1)),
        rare((replace(KILLED_0, index=1), replace(RECLAIMED_1, index=0))),
        rare((replace(KILLED_0, place="checkpoint", step=2),)),
    ],
)
def test_nodes_are_lost_and_reclaimed_and_retries_go_on_as_if_nothing_had_happened(
    faults: tuple[Fault, ...], driver: Driver, whole: Result, tmp_path: Path
) -> None:
    for fault in faults:
        deeds: list[dict[str, Any]] = [{}, {}]
        deeds[fault.index] = asdict(fault)
        del deeds[fault.index]["index"]
        assert driver.run(tmp_path, *deeds) == [75, 75], logs_of(tmp_path)
        for index in range(2):
            assert f"finetune: node {fault.index} ended: {fault.why}" in log_of(tmp_path, index)
    if fault.deed == RECLAIMED_1.deed:
        assert "resumes from step 5," in log_of(tmp_path, 0), "no step that was finished is lost"
    assert driver.run(tmp_path) == [0, 0], logs_of(tmp_path)
    assert "resuming from step" in log_of(tmp_path, 0)
    assert result_of(tmp_path / "node 0") == whole


@pytest.mark.prove
@pytest.mark.parametrize(
    ("index", "deed", "why"),
    [(1, "fail", "the weights are spoilt"), (0, "fail", "the weights are spoilt"), (1, "stumble", "ZeroDivisionError")],
)
def test_training_that_no_retry_would_mend_is_final_on_all_nodes(index: int, deed: str, why: str, driver: Driver, tmp_path: Path) -> None:
    deeds: list[dict[str, Any]] = [{}, {}]
    deeds[index] = {"deed": deed, "place": "step", "step": 3}
    assert driver.run(tmp_path, *deeds) == [202, 202], logs_of(tmp_path)
    for one in range(2):
        assert f"finetune: node {index} ended: {why}" in log_of(tmp_path, one)


@pytest.mark.prove
def test_a_node_that_hangs_ends_the_others_when_their_patience_ends(driver: Driver, whole: Result, tmp_path: Path) -> None:
    assert driver.run(
        tmp_path, {}, {"deed": "stop", "place": "step", "step": 6}, patience=10, seconds_to_exit=5, seconds_for_reasons=3
    ) == [75, 75]
    assert "node 1 is lost or hangs" in log_of(tmp_path, 0)
    assert "resumes from step 5," in log_of(tmp_path, 0)
    assert driver.run(tmp_path) == [0, 0]
    assert result_of(tmp_path / "node 0") == whole


@pytest.mark.prove
@pytest.mark.parametrize("config", [ROLLBACK, EVERYTHING], ids=["rollback", "everything"])
def test_all_that_a_checkpoint_holds_comes_to_nodes_that_cannot_read_it(config: dict[str, Any], driver: Driver, tmp_path: Path) -> None:
    config = {"num_steps": 12, **config}
    assert driver.run(tmp_path / "whole", config=config) == [0, 0], logs_of(tmp_path / "whole")
    assert driver.run(tmp_path / "killed", {}, {"deed": "kill", "place": "step", "step": 8}, config=config) == [75, 75]
    assert driver.run(tmp_path / "killed", config=config) == [0, 0]
    found = result_of(tmp_path / "killed" / "node 0")
    assert found == result_of(tmp_path / "whole" / "node 0")
    assert found.history.count(b'"rolled_back"') == (2 if "recovery" in config else 0)


# Ending, whatever the processes do.


@pytest.mark.parametrize("index", [0, 1])
@pytest.mark.parametrize(
    ("deed", "status", "why"),
    [
        ("fail", 202, "the disk is full of cats"),
        ("stumble", 202, "process 0 ended with 1; its log says why"),
        ("kill", 75, "process 0 was ended by SIGKILL"),
        ("terminate the step", 75, "it got SIGTERM"),
    ],
)
def test_a_node_that_ends_ends_the_other_which_says_why(
    index: int, deed: str, status: int, why: str, driver: Driver, tmp_path: Path
) -> None:
    deeds: list[dict[str, Any]] = [{}, {}]
    deeds[index] = {"deed": deed}
    assert driver.run(tmp_path, *deeds, program=IDLE) == [status, status], logs_of(tmp_path)
    for one in range(2):
        assert f"finetune: node {index} ended: {why}" in log_of(tmp_path, one)


def test_a_final_reason_counts_though_the_other_node_ends_first_for_want_of_the_process(driver: Driver, tmp_path: Path) -> None:
    deeds = {"deed": "end after the other failed"}, {"deed": "fail, and end late"}
    assert driver.run(tmp_path, *deeds, program=IDLE) == [202, 202], logs_of(tmp_path)
    for one in range(2):
        assert "finetune: node 1 ended: the disk is full of cats" in log_of(tmp_path, one)


@pytest.mark.parametrize(("index", "statuses"), [(0, [KILLED, 75]), rare(1, [75, KILLED])])  # A minute of silence.
def test_a_node_whose_step_process_is_killed_is_lost(index: int, statuses: list[int], driver: Driver, tmp_path: Path) -> None:
    deeds: list[dict[str, Any]] = [{}, {}]
    deeds[index] = {"deed": "kill the step"}
    assert driver.run(tmp_path, *deeds, program=IDLE, seconds_for_reasons=3) == statuses, logs_of(tmp_path)
    assert f"finetune: node {index} is lost" in log_of(tmp_path, 1 - index)


@pytest.mark.parametrize(
    ("error", "code", "why"),
    [
        (StorageError("the disk is full"), 202, "the disk is full"),
        (NodesError("a machine went"), 75, "a machine went"),
        (LostProcessError("connection closed"), 75, ""),
        (KeyError("a secret"), 1, "KeyError; its own log has the traceback"),
    ],
)
def test_a_process_says_why_it_failed_and_whether_a_retry_can_help(
    error: Exception, code: int, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(tmp_path / "error.json"))

    def body() -> None:
        raise error

    if code == 1:
        with pytest.raises(KeyError):
            exit_code(body)
    else:
        assert exit_code(body) == code
    failure = ProcessFailure(local_rank=0, pid=1, exitcode=code, error_file=str(tmp_path / "error.json"))
    assert ending_of([failure]) == Ending(why, is_final=code != 75)
    assert final_reason(tmp_path) == ("" if code == 75 else why)


def test_a_process_whose_work_is_done_leaves_before_a_library_can_abort_it(tmp_path: Path) -> None:
    program = """
import atexit, os
from steps.nodes.membership import NodesError
from steps.nodes.worker import leave
atexit.register(os.abort)
def body():
    print("saved")
    if error: raise error
codes = []
for error in (SystemExit(75), NodesError("a machine went"), None):
    if not (pid := os.fork()): leave(body)
    codes.append(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
print(codes, flush=True)
os._exit(0)
"""
    variables = {**os.environ, "TORCHELASTIC_ERROR_FILE": str(tmp_path / "error.json"), "PYTHONPATH": PATHS}
    done = subprocess.run([sys.executable, "-c", program], env=variables, capture_output=True, text=True, check=False)
    assert done.stdout == "saved\n" * 3 + "[75, 75, 0]\n", done.stderr


def test_nodes_that_end_well_end_well(driver: Driver, tmp_path: Path) -> None:
    assert driver.run(tmp_path, program=IDLE, deed="end well") == [0, 0], logs_of(tmp_path)


class SigtermWhileLocked:
    """A Popen's lock. While it is taken for the first time, SIGTERM comes."""

    def __init__(self) -> None:
        self._lock, self._is_first = threading.Lock(), True

    def acquire(self, is_blocking: bool = True) -> bool:
        taken = self._lock.acquire(is_blocking)
        if self._is_first:
            self._is_first = False
            os.kill(os.getpid(), signal.SIGTERM)
        return taken

    def release(self) -> None:
        self._lock.release()


@pytest.mark.parametrize("seconds_left", [0, 300])
def test_a_sigterm_does_not_hide_the_end_of_a_process_from_the_agent(seconds_left: float) -> None:
    """By chance it comes when the agent, as it often does, looks whether a process has ended."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    process._waitpid_lock = SigtermWhileLocked()  # type: ignore[attr-defined]
    before = signal.getsignal(signal.SIGTERM)

    def look() -> None:
        with _interruptible():
            assert process.poll() == 0
            time.sleep(seconds_left)

    with pytest.raises(SignalException):
        look()
    assert process.poll() == 0
    assert signal.getsignal(signal.SIGTERM) == before


# Coming together.


def node_of(request: pytest.FixtureRequest, index: int = 0) -> Node:
    return Node(index=index, count=3, main_address=LOOPBACK, attempt=f"{os.getpid()} {request.node.name}")


def test_who_waits_in_vain_says_for_whom(request: pytest.FixtureRequest) -> None:
    with pytest.raises(NodesError, match=r"node 0 waited 0.3 s, but node 1, 2 did not come"):
        Membership.met(node_of(request), seconds=0.3)
    with pytest.raises(NodesError, match=r"node 2 found no node 0 at 127.0.0.1, port \d+, in 0.3 s"):
        Membership.met(node_of(request, 2), seconds=0.3)


def test_a_port_that_another_has_is_told_and_a_retry_has_another(request: pytest.FixtureRequest) -> None:
    first, again = (Node(index=0, count=3, main_address=LOOPBACK, attempt=f"run 7, attempt {number}").port for number in (0, 1))
    assert first != again
    node = node_of(request)
    assert node.port == node_of(request, 2).port
    with socket.create_server(("", node.port)), pytest.raises(NodesError, match=f"port {node.port} of node 0 cannot be used"):
        Membership.met(node, seconds=0.3)


def test_on_one_machine_nobody_else_reaches_the_store(request: pytest.FixtureRequest) -> None:
    node = Node(index=0, count=1, main_address=LOOPBACK, attempt=f"{os.getpid()} {request.node.name}")
    membership = Membership.met(node, seconds=1)
    lines = [line.split() for name in ("tcp", "tcp6") for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]]
    assert [words[1] for words in lines if words[3] == "0A" and words[1].endswith(f":{node.port:04X}")] == [f"0100007F:{node.port:04X}"]
    membership.settle(None)


def test_a_node_that_falls_silent_is_lost(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that vanishes closes no connection: here the other node comes, and never beats."""
    for name, seconds in {"OF_SILENCE": 0.5, "BETWEEN_BEATS": 0.05, "FOR_REASONS": 0.2, "TO_LEAVE": 0.2}.items():
        monkeypatch.setattr(steps.nodes.membership, f"_SECONDS_{name}", seconds)
    nodes = [Node(index=index, count=2, main_address=LOOPBACK, attempt=f"{os.getpid()} {request.node.name}") for index in range(2)]
    with ThreadPoolExecutor() as pool:
        other = pool.submit(Membership.met, nodes[1], seconds=300)
        membership = Membership.met(nodes[0], seconds=300)
        silent = other.result()
    with pytest.raises(Terminated), terminable(), membership.watched():
        time.sleep(300)
    assert membership.was_stopped
    with pytest.raises(NodesError, match="node 1 is lost or hangs"):
        membership.settle(Ending())
    del silent
