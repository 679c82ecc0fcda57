"""Faults that would end a run after an hour end it in seconds, with the remedy."""

import errno
import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from made_games import random_pgn
from presets import tiny_settings

from grpo.settings.tree import Settings, read_settings
from steps.cli.main import main
from steps.job import preflight as checks
from steps.job.preflight import PreflightCheck, PreflightError, examine, preflight, table, tried
from steps.run.machine import Machine
from steps.start import start
from steps.track.outages import TrackingAwayError, failures_of

KEY = "0123456789" * 4


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory, give_tables: Callable[[Path], Path]) -> Path:
    return give_tables(tmp_path_factory.mktemp("machine") / "home")


@pytest.fixture
def machine(home: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    monkeypatch.setenv("CHESS_GRPO_HOME", str(home))
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    return Machine.here()


def failures(machine: Machine, settings: Settings | None = None) -> dict[str, str]:
    found = preflight(settings or tiny_settings(), machine)
    return {check.what: check.detail for check in found if not check.is_fine}


def tracking_of(machine: Machine) -> PreflightCheck:
    """Return the one check of the tracking store; others start an engine."""
    return tried("tracking", lambda: checks._tracking(machine))


@pytest.mark.parametrize(
    ("changes", "what", "remedy"),
    [
        ({"stockfish": "/nowhere/stockfish"}, "stockfish", "apt-get install stockfish"),
        ({"home": Path("/dev/null/home")}, "disk", "CHESS_GRPO_HOME"),
        ({"tracking_uri": "http://me:hunter2@tracker"}, "tracking", "MLFLOW_TRACKING_PASSWORD"),
        ({"device": "cuda"}, "device", "no GPU"),
    ],
)
def test_what_a_machine_lacks_is_named_with_the_remedy(
    changes: dict[str, Any], what: str, remedy: str, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    found = failures(replace(machine, **changes))
    assert found.keys() == {what}
    assert remedy in found[what]
    assert "hunter2" not in found[what]


def test_a_run_that_lacks_something_ends_in_start_and_leaves_nothing(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CHESS_GRPO_HOME", str(home))
    monkeypatch.setenv("CHESS_GRPO_STOCKFISH", "/nowhere/stockfish")
    given = {"settings": tiny_settings().model_dump(mode="json"), "keys": {}}
    with pytest.raises(PreflightError, match=r"cannot start:\n.*no engine at '/nowhere/stockfish'"):
        start(given, run="1", is_fresh=False, resume_from="")
    assert not (home / "runs").exists()


@pytest.mark.parametrize("program", ["cat", "true"])
def test_a_program_that_is_no_engine_is_refused(machine: Machine, program: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("grpo.engine.identity.START_SECONDS", 0.5)
    assert "not a usable UCI engine" in failures(replace(machine, stockfish=f"/bin/{program}"))["stockfish"]


def test_a_tracking_store_that_is_away_is_told_and_stops_nothing(machine: Machine) -> None:
    [check] = [each for each in preflight(tiny_settings(), replace(machine, tracking_uri="http://127.0.0.1:1")) if each.what == "tracking"]
    assert (check.is_fine, check.is_warning) == (True, True)
    assert "Connection refused" in check.detail
    assert table([check]).startswith("  warn  tracking  ")


def test_an_outage_is_a_warning_at_the_start_of_a_run_and_in_the_last_line_of_doctor(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CHESS_GRPO_HOME", str(home))
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:1")
    start({"settings": tiny_settings().model_dump(mode="json"), "keys": {}}, run="1", is_fresh=False, resume_from="")
    assert re.search(r"  warn  tracking +.*Connection refused.*the run continues", capsys.readouterr().out)
    assert main(["doctor", "--config", "smoke"]) == 0
    assert capsys.readouterr().out.endswith("All checks passed, 1 warning.\n")


def test_a_user_without_a_home_folder_is_told_which_variable_to_set(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def unknown(user: int) -> None:
        raise KeyError(user)

    monkeypatch.delenv("HOME")
    monkeypatch.setattr("pwd.getpwuid", unknown)
    assert main(["runs"]) == 1
    [line] = capsys.readouterr().err.splitlines()
    assert "set HOME to a writable folder" in line


@pytest.mark.parametrize(
    ("address", "complaint"),
    [
        ("localhost:5000", "has no scheme: give http://localhost:5000"),
        ("./mlruns", "has no scheme: give http://HOST:PORT"),
        (" ", "is blank"),
        ("http://tracker:5000 ", "has blanks at its ends"),
        ("ftp://tracker/mlflow", "unknown scheme, ftp://"),
        ("http://", "has no host: give http://HOST:PORT"),
        ("http://tracker:0", "has port 0: give http://HOST:PORT"),
        ("http://tracker:port", "is no address"),
        ("http://tracker:5000/#/experiments/0?searchFilter=", "the address of a page; give http://tracker:5000$"),
        ("sqlite://mlflow.db", "Invalid SQLite URL"),
        ("postgresql+nothing://tracker/mlflow", "install the database's driver"),
        ("file:///tmp/mlruns", "filesystem tracking backend"),
    ],
)
def test_an_address_at_which_no_tracking_store_can_ever_be_is_refused_with_the_reason(
    address: str, complaint: str, machine: Machine
) -> None:
    check = tracking_of(replace(machine, tracking_uri=address))
    assert not check.is_fine
    assert re.search(complaint, check.detail)


def test_a_store_that_cannot_be_written_names_both_remedies() -> None:
    with (
        pytest.raises(TrackingAwayError, match=r"Read-only.*: free disk space, or make the store writable"),
        failures_of("file:///x", "it"),
    ):
        raise OSError(errno.EROFS, "Read-only file system")


class Answer(BaseHTTPRequestHandler):
    """Answers everything with the server's `status` and `body`."""

    def do_GET(self) -> None:  # http.server calls it.
        self.send_response(self.server.status)
        self.end_headers()
        self.wfile.write(self.server.body)

    do_POST = do_GET  # noqa: N815

    def log_message(self, *_: Any) -> None:
        """Print nothing."""


@pytest.fixture
def answering() -> Iterator[Any]:
    """A server of web pages; `status` and `body` can be set."""
    with HTTPServer(("127.0.0.1", 0), Answer) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


@pytest.mark.parametrize(
    ("status", "body", "is_proxied", "complaint"),
    [
        (403, "Invalid Host header - possible DNS rebinding attack detected", False, r"403: Invalid Host .*--allowed-hosts 127\.0\.0\.1:"),
        (403, "<html><head><title>x</title></head><h1>Denied by policy</h1>", True, r"\(403: Denied by policy\).*http_proxy.*NO_PROXY"),
        (403, "Forbidden", False, "403: Forbidden.*MLFLOW_TRACKING_USERNAME"),
        (401, '{"error_code": "UNAUTHENTICATED", "message": "who?"}', True, "who.*MLFLOW_TRACKING_USERNAME"),
        (200, "<h1>Welcome</h1>" + "!" * 9_999, False, "not as an MLflow server does .Welcome !{192}.:"),
        (404, "<h1>Not found</h1>", True, "not as an MLflow server does, through the proxy .*404: Not found"),
        (404, '{"detail": "Not Found"}', False, "not as an MLflow server does"),
        (503, "<h1>Back soon</h1>", False, ""),
        (500, '{"error_code": "INTERNAL_ERROR", "message": "oops"}', False, ""),
        (503, '{"message": "Service Unavailable"}', False, ""),
    ],
)
def test_what_answers_and_will_never_work_is_refused_in_the_servers_own_words_and_an_outage_is_a_warning(
    status: int, body: str, is_proxied: bool, complaint: str, machine: Machine, answering: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    answering.status, answering.body = status, body.encode()
    address = f"http://127.0.0.1:{answering.server_port}"
    if is_proxied:
        monkeypatch.setenv("http_proxy", address)
        monkeypatch.delenv("NO_PROXY", raising=False)
        monkeypatch.delenv("no_proxy", raising=False)
    check = tracking_of(replace(machine, tracking_uri="http://tracker.invalid" if is_proxied else address))
    assert (check.is_fine, check.is_warning) == (not complaint, not complaint)
    assert re.search(complaint, check.detail)
    assert len(check.detail) < 700


@pytest.mark.parametrize(
    ("key", "name", "content", "complaint"),
    [
        ("boards.files", "games.docx", "games", "the suffix is unknown"),
        ("boards.files", "page.pgn.zst", "<!DOCTYPE html> not found", "page.pgn.zst: "),
        ("boards.exclude", "absent.pgn", None, "no file found"),
        ("evaluation.opening_book", "empty.epd", "", "empty"),
    ],
)
def test_what_cannot_be_a_source_is_named_before_any_work(
    key: str, name: str, content: str | None, complaint: str, machine: Machine, tmp_path: Path
) -> None:
    (tmp_path / "good.pgn").write_text('[Event "?"]\n\n1. e4 *\n')
    if content is not None:
        (tmp_path / name).write_text(content)
    given = {"boards.files": "good.pgn"} | {key: name}
    found = failures(machine, tiny_settings("\n".join(f'{each} = "{tmp_path / value}"' for each, value in given.items())))
    assert found.keys() == {key}
    assert complaint in found[key]


def test_a_language_model_whose_folder_has_none_is_named_before_any_work(machine: Machine, tmp_path: Path) -> None:
    for model, complaint in ((tmp_path / "nowhere", "is not an existing folder"), (tmp_path, "has no config.json")):
        given = f'policy.kind = "language"\npretrain.learning_rate = 1e-4\nlanguage.model = "{model}"'
        [(_, said)] = failures(machine, tiny_settings(given)).items()
        assert complaint in said


def test_a_doctor_reads_the_games_and_says_whether_they_suffice(machine: Machine, tmp_path: Path) -> None:
    (tmp_path / "games.pgn").write_text(random_pgn(40))

    def boards(num_train: int, num_others: int) -> tuple[bool, str]:
        wanted = {"num_train": num_train, "num_validation": num_others, "num_heldout": num_others}
        given = {"files": [str(tmp_path / "games.pgn")], "num_units": 1, **wanted}
        settings = Settings.model_validate({"boards": given, "grpo": {"states_per_step": 64, "self_play_states": 200}})
        return next((check.is_fine, check.detail) for check in examine(settings, machine) if check.what == "boards")

    is_fine, detail = boards(90, 9)
    assert is_fine
    assert "all 108 wanted" in detail
    is_fine, detail = boards(900, 300)
    assert is_fine
    assert re.search(r"train \d+ of 900", detail)


@pytest.mark.parametrize(
    ("modules", "unneeded"),
    [
        # Each task of a flow, and each drawing of a card, imports the flow's file; the steps' modules come when one of them is called.
        ("chess_grpo", {"torch", "mlflow", "numpy", "chess"}),
        ("steps.build_boards, steps.check_boards, steps.calibrate, steps.report, steps.cards.pages", {"torch", "mlflow"}),
    ],
)
def test_flow_steps_and_cards_import_nothing_slow_that_they_do_not_use(modules: str, unneeded: set[str]) -> None:
    flow = Path(__file__).resolve().parents[3] / "flows"
    script = f"import sys; sys.path.insert(0, {str(flow)!r}); import {modules}; print({unneeded} & sys.modules.keys())"
    assert subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.split() == ["set()"]


def test_a_machine_is_looked_at_and_left_as_it_was_and_no_key_is_printed_and_packages_are_named_that_differ_from_the_lock(
    stockfish: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    for name in [name for name in os.environ if name.startswith(("METAFLOW_", "MLFLOW_TRACKING", "CHESS_GRPO_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setattr("sys.prefix", str(tmp_path))  # Where no lock is recorded.
    monkeypatch.setenv("WANDB_API_KEY", KEY)
    lock = tmp_path_factory.mktemp("lock") / "requirements-run.lock"
    lock.write_text(f"numpy=={version('numpy')}\npydantic==0.1\n")
    monkeypatch.setattr(checks, "LOCK", lock)
    machine = replace(Machine.here(), home=tmp_path / "home", store=str(tmp_path / "store"), stockfish=stockfish)
    found = {check.what: check for check in examine(read_settings("smoke"), machine)}
    assert found.keys() == {"python", "packages", "metaflow", "settings", "stockfish", "disk", "tracking", "device", "store", "network"}
    assert {what for what, check in found.items() if not check.is_fine} == {"packages"}
    assert f"pydantic {version('pydantic')}, not 0.1" in found["packages"].detail
    assert KEY not in str(found)
    assert list(tmp_path.iterdir()) == []
