"""Of all who want to write one thing, one does; who ended, slept or was superseded lets the next one in, and learns of it."""

import fcntl
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import pytest

from grpo.base.files import CorruptError
from steps.runtime.process_id import Writer
from steps.store.file_lock import BusyError, file_lock
from steps.store.object_lease import LeaseLostError, shared_lease, tracking_lease_key
from steps.store.objects import FolderObjects, Objects, SharedStoreError, Stored, objects_at

DRIVER = Path(__file__).with_name("lease_driver.py")
KEY = "leases/finetune/v1.json"
TERM = 1.5
"""Seconds; three renewals in it, on a busy machine too."""


class Process:
    """A process that holds a lease, or was refused."""

    def __init__(self, **job: Any) -> None:
        self._popen = subprocess.Popen(
            [sys.executable, str(DRIVER), json.dumps(job)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.pid = self._popen.pid

    def hears(self) -> str:
        assert self._popen.stdout is not None
        return self._popen.stdout.readline().strip()

    def asked(self, what: str) -> str:
        assert self._popen.stdin is not None
        self._popen.stdin.write(f"{what}\n")
        self._popen.stdin.flush()
        return self.hears()

    def send(self, number: int) -> None:
        self._popen.send_signal(number)

    def killed(self) -> Self:
        self.send(signal.SIGKILL)
        self._popen.wait()
        return self

    def end(self) -> str:
        return self._popen.communicate(timeout=300)[0]


@pytest.fixture
def start() -> Iterator[Callable[..., Process]]:
    """Give a starter of processes, none of which is left."""
    started: list[Process] = []

    def start(**job: Any) -> Process:
        started.append(Process(**job))
        return started[-1]

    yield start
    for process in started:
        process.send(signal.SIGKILL)
        process.end()


@pytest.fixture(scope="module")
def s3() -> Iterator[str]:
    """Give the address of an S3 that answers one request after the other: moto looks and writes without a lock of its own."""
    from moto.server import DomainDispatcherApplication, create_backend_app
    from werkzeug.serving import WSGIRequestHandler, make_server

    class Silent(WSGIRequestHandler):
        def log(self, *_: Any) -> None:
            pass

    server = make_server("127.0.0.1", 0, DomainDispatcherApplication(create_backend_app), request_handler=Silent)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def in_s3(*values: Any) -> Any:
    """Return a case for `make prove`, where the same on a folder is in `make test`."""
    return pytest.param(*values, marks=pytest.mark.prove)


@pytest.fixture(params=["folder", in_s3("S3")])
def place(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Both kinds of shared stores, empty, for this process and others."""
    return a_place(request, tmp_path, monkeypatch)


@pytest.fixture(params=["folder", "S3"])
def any_place(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The same, S3 in `make test` too."""
    return a_place(request, tmp_path, monkeypatch)


def a_place(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "folder":
        return str(tmp_path / "objects")
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    address = request.getfixturevalue("s3")
    variables = {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b", "AWS_DEFAULT_REGION": "us-east-1", "AWS_ENDPOINT_URL": address}
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    import boto3

    bucket = f"of-{tmp_path.name}".lower().replace("_", "-").rstrip("0123456789-")[:50] + f"-{time.monotonic_ns()}"
    boto3.client("s3").create_bucket(Bucket=bucket)
    return f"s3://{bucket}/shared"


@pytest.fixture
def at_once(capsys: pytest.CaptureFixture[str]) -> Iterator[None]:
    """Fail a test in which a taker had to watch for what a holder does."""
    yield
    assert "waiting up to" not in capsys.readouterr().out


def held(objects: Objects, writer: Writer, *, seconds: float = TERM) -> Any:
    return shared_lease(objects, KEY, what="the output", writer=writer, seconds=seconds)


def elsewhere(**facts: Any) -> Writer:
    return replace(Writer.here(), host="elsewhere", **facts)


def content(objects: Objects) -> dict[str, Any]:
    stored = objects.get(KEY)
    assert stored is not None
    return dict(json.loads(stored.data))


# Two at once.


@pytest.mark.parametrize("hosts", [(None, None), ("one", "two")], ids=["one machine", "two machines"])
def test_two_processes_never_hold_it_at_once_and_tokens_grow(
    place: str, hosts: tuple[str | None, str | None], start: Callable[..., Process], tmp_path: Path
) -> None:
    rounds = 8 if hosts[0] is None else 3
    check_contention(place, hosts, start, tmp_path, rounds)


@pytest.mark.prove
@pytest.mark.parametrize("hosts", [(None, None), ("one", "two")], ids=["one machine", "two machines"])
def test_nor_do_they_in_many_rounds(
    any_place: str, hosts: tuple[str | None, str | None], start: Callable[..., Process], tmp_path: Path
) -> None:
    check_contention(any_place, hosts, start, tmp_path, 40)


def check_contention(place: str, hosts: tuple[str | None, str | None], start: Callable[..., Process], tmp_path: Path, rounds: int) -> None:
    job = {"deed": "contend", "place": place, "key": KEY, "seconds": 9.0, "rounds": rounds}
    job |= {"room": str(tmp_path / "room"), "longest": 0.02 if hosts[0] is None else 0.2}
    ended = [start(**job, seed=seed, **({"host": host} if host else {})) for seed, host in enumerate(hosts)]
    found = [json.loads(process.end().splitlines()[-1]) for process in ended]
    assert [result["overlaps"] for result in found] == [0, 0]
    tokens = [token for result in found for token in result["tokens"]]
    assert sorted(tokens) == list(range(1, 2 * rounds + 1)), "each holder has a token of its own, larger than those before"
    assert all(result["tokens"] == sorted(result["tokens"]) for result in found)


def test_two_processes_never_hold_the_lock_of_a_file_at_once(start: Callable[..., Process], tmp_path: Path) -> None:
    job = {"deed": "contend", "file": str(tmp_path / "v1.lock"), "room": str(tmp_path / "room"), "rounds": 100, "longest": 0.002}
    ended = [start(**job, seed=seed) for seed in range(2)]
    assert [json.loads(process.end())["overlaps"] for process in ended] == [0, 0]
    assert not (tmp_path / "v1.lock").exists()


def test_of_many_takers_of_one_dead_holders_lease_one_gets_it(any_place: str) -> None:
    objects = objects_at(any_place)
    with held(objects, elsewhere(), seconds=0.2):
        dead = objects.get(KEY)
        assert dead is not None
    objects.put(KEY, dead.data)  # As if it had not been released.
    gate, outcomes, refused = threading.Barrier(4), [], threading.Semaphore(0)

    def take() -> None:
        gate.wait()
        try:
            with held(objects_at(any_place), elsewhere(), seconds=6.0) as lease:
                outcomes.append(lease.fencing_token)
                assert all(refused.acquire(timeout=600) for _ in range(3))
        except BusyError:
            outcomes.append(0)
            refused.release()

    threads = [threading.Thread(target=take) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(outcomes) == [0, 0, 0, 2]


# A holder that lives.


@pytest.mark.usefixtures("at_once")
def test_a_living_holder_here_is_named_and_nobody_waits_for_it(place: str, start: Callable[..., Process]) -> None:
    holder = start(deed="hold", place=place, key=KEY, seconds=60.0, task="7/finetune/12", attempt=1)
    assert holder.hears() == "held 1"
    named = rf"the output is being made by process {holder.pid} on \S+ \(task 7/finetune/12, attempt 1\), since 2\S+, renewed until 2"
    with pytest.raises(BusyError, match=named) as refusal, held(objects_at(place), Writer.here()):
        pass
    assert f"(it holds {KEY} in {place}): wait for it or stop it, then run the same command again" in str(refusal.value)
    assert holder.asked("check") == "mine"


def test_a_living_holder_elsewhere_is_seen_to_renew_and_is_left_alone(
    place: str, start: Callable[..., Process], capsys: pytest.CaptureFixture[str]
) -> None:
    holder = start(deed="hold", place=place, key=KEY, seconds=2 * TERM, host="elsewhere")
    assert holder.hears() == "held 1"
    for _ in range(2):
        with pytest.raises(BusyError, match=rf"process {holder.pid} on elsewhere"), held(objects_at(place), Writer.here()):
            pass
    assert "the output: waiting up to 4 s to see whether it is still made by process" in capsys.readouterr().out
    assert holder.asked("check") == "mine"


def test_an_earlier_attempt_does_not_take_it_from_a_later_one(place: str) -> None:
    objects = objects_at(place)
    with held(objects, elsewhere(task="7/finetune/12", attempt=1)):
        for other in (elsewhere(task="7/finetune/12", attempt=0), elsewhere(task="7/finetune/12", attempt=1), elsewhere(attempt=2)):
            with pytest.raises(BusyError), held(objects, other):
                pass


@pytest.mark.parametrize("until", ["1999-01-01T00:00:00+00:00", "2999-01-01T00:00:00+00:00"], ids=["early", "late"])
def test_a_wrong_clock_elsewhere_takes_nothing_from_its_holder_and_keeps_nothing_from_the_next(
    until: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    objects = FolderObjects(tmp_path)
    with monkeypatch.context() as patch, held(objects, elsewhere()) as lease:
        patch.setattr("steps.store.object_lease._now_text", lambda _=0.0: until)
        lease.confirm()
        with pytest.raises(BusyError), held(objects, Writer.here()):
            pass
        stored = objects.get(KEY)
        assert stored is not None
        assert content(objects)["until"] == until
    objects.put(KEY, stored.data)
    with held(objects, Writer.here()) as lease:
        assert lease.fencing_token == 2


# A holder that ended, slept or was superseded.


@pytest.mark.usefixtures("at_once")
def test_of_a_killed_holder_here_it_is_taken_at_once(place: str, start: Callable[..., Process]) -> None:
    holder = start(deed="hold", place=place, key=KEY, seconds=9.0)
    assert holder.hears() == "held 1"
    holder.send(signal.SIGKILL)
    os.waitid(os.P_PID, holder.pid, os.WEXITED | os.WNOWAIT)  # A zombie counts as dead.
    with held(objects_at(place), Writer.here()) as lease:
        assert lease.fencing_token == 2


@pytest.mark.usefixtures("at_once")
def test_a_process_that_has_a_dead_holders_number_is_not_taken_for_it(tmp_path: Path) -> None:
    objects = FolderObjects(tmp_path)
    writer = Writer.here()
    with held(objects, replace(writer, started=writer.started - 1), seconds=9.0), held(objects, writer) as lease:
        assert lease.fencing_token == 2


def test_of_a_killed_holder_elsewhere_it_is_taken_when_nothing_was_renewed(place: str, start: Callable[..., Process]) -> None:
    holder = start(deed="hold", place=place, key=KEY, seconds=TERM, host="elsewhere")
    assert holder.hears() == "held 1"
    holder.killed()
    began = time.monotonic()
    with held(objects_at(place), Writer.here()) as lease:
        assert lease.fencing_token == 2
        assert time.monotonic() - began > TERM, "its holder might have lived so long"


@pytest.mark.usefixtures("at_once")
def test_an_earlier_attempt_is_superseded_at_once_and_learns_of_it(place: str, start: Callable[..., Process]) -> None:
    holder = start(deed="hold", place=place, key=KEY, seconds=9.0, host="elsewhere", task="7/finetune/12", attempt=0)
    assert holder.hears() == "held 1"
    with held(objects_at(place), Writer.here("7/finetune/12", 1), seconds=9.0) as lease:
        assert lease.fencing_token == 2
        told = holder.asked("confirm")
        assert told.startswith(f"lost, may pass True: the output is no longer this process's to write: it is made by process {os.getpid()}")
        assert holder.asked("check").startswith("lost, may pass True")
        holder.end()  # It releases what it no longer has:
        lease.confirm()
    assert content(objects_at(place))["writer"] is None


@pytest.mark.usefixtures("at_once")
def test_a_holder_that_ends_without_having_learned_of_the_next_takes_nothing_from_it(tmp_path: Path) -> None:
    objects = FolderObjects(tmp_path)
    with ExitStack() as later:
        with held(objects, elsewhere(task="7/finetune/12", attempt=0), seconds=60.0):
            lease = later.enter_context(held(objects, elsewhere(task="7/finetune/12", attempt=1), seconds=60.0))
        lease.confirm()
        assert content(objects)["token"] == lease.fencing_token == 2


def test_a_holder_that_slept_too_long_learns_of_the_next_when_it_wakes(place: str, start: Callable[..., Process]) -> None:
    holder = start(deed="hold", place=place, key=KEY, seconds=TERM, host="elsewhere")
    assert holder.hears() == "held 1"
    assert holder.asked("check") == "mine"
    holder.send(signal.SIGSTOP)
    with held(objects_at(place), Writer.here()) as lease:
        holder.send(signal.SIGCONT)
        assert holder.asked("check").startswith(
            f"lost, may pass True: the output is no longer this process's to write: it is made by process {os.getpid()}"
        )
        holder.end()
        lease.confirm()


def test_a_holder_that_slept_while_nobody_came_goes_on(start: Callable[..., Process], tmp_path: Path) -> None:
    holder = start(deed="hold", place=str(tmp_path), key=KEY, seconds=TERM)
    assert holder.hears() == "held 1"
    holder.send(signal.SIGSTOP)
    time.sleep(TERM * 1.2)
    holder.send(signal.SIGCONT)
    assert holder.asked("check") == "mine"
    assert holder.asked("confirm") == "mine"


def test_the_term_counts_from_the_question_and_not_from_an_answer_that_comes_late(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]

    class Slow(FolderObjects):
        is_down = False

        def replace(self, key: str, data: bytes, *, tag: str) -> str | None:
            if self.is_down:
                raise SharedStoreError("down")
            made = super().replace(key, data, tag=tag)
            now[0] += 50
            return made

    monkeypatch.setattr("steps.store.object_lease._clock", lambda: now[0])
    objects = Slow(tmp_path)
    with held(objects, Writer.here(), seconds=60.0) as lease:
        lease.confirm()  # Asked at 100, answered at 150.
        objects.is_down = True
        now[0] = 165.0
        with pytest.raises(LeaseLostError, match="could not be renewed in time"):
            lease.check()


@pytest.mark.usefixtures("at_once")
def test_what_is_released_is_free_at_once_and_tokens_go_on(any_place: str) -> None:
    objects = objects_at(any_place)
    for token in (1, 2, 3):
        with held(objects, elsewhere(), seconds=9.0) as lease:
            assert lease.fencing_token == token
            assert content(objects)["token"] == token
        with pytest.raises(LeaseLostError, match="it was released"):
            lease.check()


@pytest.mark.usefixtures("at_once")
def test_an_error_in_the_block_releases_it_too(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), held(FolderObjects(tmp_path), elsewhere(), seconds=9.0):
        raise ZeroDivisionError
    with held(FolderObjects(tmp_path), Writer.here()):
        pass


# A store that fails.


class Failing(FolderObjects):
    """A store whose writes fail as a test says."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.is_down = False
        self.loses_answers = 0
        self.writes = 0

    def get(self, key: str) -> Stored | None:
        self._answer()
        return super().get(key)

    def create(self, key: str, data: bytes) -> str | None:
        return self._after(super().create(key, data), lambda: super(Failing, self).create(key, data))

    def replace(self, key: str, data: bytes, *, tag: str) -> str | None:
        self._answer()
        self.writes += 1
        return self._after(super().replace(key, data, tag=tag), lambda: super(Failing, self).replace(key, data, tag=tag))

    def _after(self, made: str | None, again: Callable[[], str | None]) -> str | None:
        """Lose the answer to a request, which is then sent again, as S3's clients do."""
        if made is not None and self.loses_answers:
            self.loses_answers -= 1
            return again()
        return made

    def _answer(self) -> None:
        if self.is_down:
            raise SharedStoreError("the store is down")


@pytest.mark.usefixtures("at_once")
def test_a_write_whose_answer_is_lost_is_known_as_ones_own(tmp_path: Path) -> None:
    objects = Failing(tmp_path)
    objects.loses_answers = 1
    with held(objects, elsewhere(), seconds=9.0) as lease:
        assert objects.loses_answers == 0
        objects.loses_answers = 1
        lease.confirm()
        assert objects.loses_answers == 0
        lease.confirm()
        objects.loses_answers = 1
    assert objects.loses_answers == 0
    objects.loses_answers = 1
    with held(objects, elsewhere(), seconds=9.0) as lease:
        assert (lease.fencing_token, objects.loses_answers) == (2, 0)


def wait_for_writes(objects: Failing, number: int) -> None:
    deadline = time.monotonic() + 300
    while objects.writes < number:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_it_is_renewed_while_it_is_held(tmp_path: Path) -> None:
    objects = Failing(tmp_path)
    with held(objects, elsewhere()) as lease:
        wait_for_writes(objects, 4)
        lease.check()
        assert content(objects)["renewals"] >= 3


def test_a_store_that_is_down_for_a_while_costs_nothing(tmp_path: Path) -> None:
    objects = Failing(tmp_path)
    with held(objects, elsewhere(), seconds=2 * TERM) as lease:
        objects.is_down = True
        lease.check()
        with pytest.raises(SharedStoreError, match="did not confirm that this process still holds the lease: the store is down"):
            lease.confirm()
        writes, objects.is_down = objects.writes, False
        wait_for_writes(objects, writes + 1)
        lease.check()


def test_a_store_that_is_down_for_a_term_costs_the_lease(tmp_path: Path) -> None:
    objects = Failing(tmp_path)
    with held(objects, elsewhere(), seconds=0.2) as lease:
        wait_for_writes(objects, 1)
        objects.is_down = True
        time.sleep(0.3)
        with pytest.raises(LeaseLostError, match=r"it could not be renewed in time \(the store is down\)") as lost:
            lease.check()
        assert lost.value.may_pass
        objects.is_down = False
        with pytest.raises(LeaseLostError):
            lease.check()


def test_a_lost_lease_is_not_renewed_any_more(tmp_path: Path) -> None:
    objects = Failing(tmp_path)
    with held(objects, elsewhere()) as lease:
        objects.put(KEY, objects.get(KEY).data.replace(b'"claim": "', b'"claim": "x'))  # type: ignore[union-attr]
        with pytest.raises(LeaseLostError):
            lease.confirm()
        writes = objects.writes
        time.sleep(TERM)
        assert objects.writes == writes
    assert content(objects)["writer"] is not None


@pytest.mark.parametrize("data", [b"", b"\0", b"[]", b"{}", b'{"writer": null, "token": 1}', b'{"writer": 3}'])
def test_an_object_that_is_no_lease_is_not_taken(data: bytes, tmp_path: Path) -> None:
    objects = FolderObjects(tmp_path)
    objects.put(KEY, data)
    with pytest.raises(CorruptError, match=f"{KEY} in {tmp_path} is not a valid lease, .* delete it"), held(objects, Writer.here()):
        pass


@pytest.mark.parametrize(
    ("name", "value"), [("token", "1"), ("seconds", 1e9), ("seconds", -1.0), ("until", "soon"), ("until", "2026-01-01")]
)
def test_a_lease_that_makes_no_sense_is_not_taken(name: str, value: Any, tmp_path: Path) -> None:
    objects = FolderObjects(tmp_path)
    with held(objects, Writer.here()):
        pass
    objects.put(KEY, json.dumps({**content(objects), name: value}).encode())
    with pytest.raises(CorruptError), held(objects, Writer.here()):
        pass


# Of a file.


def test_the_lock_of_a_file_names_its_holder_and_goes_with_it(start: Callable[..., Process], tmp_path: Path) -> None:
    path = tmp_path / "v1.lock"
    holder = start(deed="hold", file=str(path))
    assert holder.hears() == "held 0"
    named = rf"the output is being made by process {holder.pid} on \S+, since 2\S+ \(it holds {path}\)"
    with pytest.raises(BusyError, match=named), file_lock(path, what="the output"):
        pass
    holder.killed()
    assert path.exists()
    with file_lock(path, what="the output"):
        assert json.loads(path.read_text())["writer"]["pid"] == os.getpid()
    assert not path.exists()


@pytest.mark.parametrize("left", ["", "{", '{"writer": {}}', None], ids=["nothing", "half", "of another kind", "of a dead process"])
def test_what_the_file_says_wrongly_is_not_believed(left: str | None, tmp_path: Path) -> None:
    path = tmp_path / "v1.lock"
    writer = Writer.here()
    stale = json.dumps({"writer": replace(writer, started=writer.started - 1).facts(), "since": "2026"}) if left is None else left
    with file_lock(path, what="the output"):
        path.write_text(stale)
        with pytest.raises(BusyError, match=r"is being made by another process \(it holds"), file_lock(path, what="the output"):
            pass


def test_a_lock_file_that_its_holder_has_just_deleted_locks_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, calls, flock = tmp_path / "v1.lock", [], fcntl.flock

    def just_deleted(file: Any, operation: int) -> None:
        if not calls:
            path.unlink()  # Between our opening it and our locking it.
        calls.append(operation)
        flock(file, operation)

    monkeypatch.setattr(fcntl, "flock", just_deleted)
    with file_lock(path, what="the output"), pytest.raises(BusyError), file_lock(path, what="the output"):
        pass
    assert len(calls) == 3


# Who writes.


def test_a_process_knows_itself_and_those_that_have_ended() -> None:
    here = Writer.here("7/finetune/12", 1)
    assert here.is_alive_here() is True
    assert Writer.from_facts(json.loads(json.dumps(here.facts()))) == here
    assert replace(here, started=here.started + 1).is_alive_here() is False
    child = subprocess.Popen(["true"])
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    started = int(Path(f"/proc/{child.pid}/stat").read_text().rpartition(")")[2].split()[19])
    zombie = replace(here, pid=child.pid, started=started)
    assert zombie.is_alive_here() is False
    child.wait()
    assert zombie.is_alive_here() is False


@pytest.mark.parametrize("other", [{"host": "x"}, {"boot": "x"}, {"pid_namespace": "x"}])
def test_of_a_process_elsewhere_nothing_is_known(other: dict[str, str]) -> None:
    writer = replace(Writer.here(), started=0)
    assert writer.is_alive_here() is False
    assert replace(writer, **other).is_alive_here() is None


def test_in_a_container_of_the_same_machine_and_name_nothing_is_known_of_processes_outside() -> None:
    if subprocess.run(["unshare", "--user", "--map-root-user", "--pid", "--fork", "true"], check=False, capture_output=True).returncode:
        pytest.skip("no namespaces here")
    code = (
        "import json, sys; from steps.runtime.process_id import Writer; print(Writer.from_facts(json.loads(sys.argv[1])).is_alive_here())"
    )
    command = [sys.executable, "-c", code, json.dumps(Writer.here().facts())]
    environment = {**os.environ, "PYTHONPATH": str(DRIVER.parents[3])}
    inside = ["unshare", "--user", "--map-root-user", "--mount", "--pid", "--fork", "--mount-proc", *command]
    assert subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout == "True\n"
    assert subprocess.run(inside, env=environment, capture_output=True, text=True, check=True).stdout == "None\n"


def test_only_a_later_attempt_of_the_same_task_supersedes() -> None:
    first = Writer.here("7/finetune/12", 0)
    assert first.is_superseded_by(elsewhere(task="7/finetune/12", attempt=1))
    assert not first.is_superseded_by(first)
    assert not first.is_superseded_by(elsewhere(task="7/finetune/13", attempt=1))
    assert not Writer.here("", 0).is_superseded_by(Writer.here("", 1))


def test_keys_of_tracked_runs_differ_by_run_and_step() -> None:
    keys = {tracking_lease_key(run, step) for run in ("a", "b") for step in ("finetune", "select")}
    assert len(keys) == 4
