"""What holds of every command: the same names of runs and policies, and no password of the tracking store's address in any message."""

import re
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from logged_runs import machine_of

from grpo.settings.tree import read_settings
from infra.canary import files_with
from steps.cli.command_table import COMMANDS
from steps.cli.main import main
from steps.pipeline.resume import find_origin
from steps.preflight.checks import preflight, preflight_table
from steps.runs.names import NotFoundError
from steps.runtime.machine import Machine, holds_secret, without_secrets
from steps.tracking.journal import JournalFolder
from steps.tracking.outages import TrackingAwayError
from steps.tracking.tracker import Tracker

PASSWORD = "S3cretPassw0rd"
NAMED = (
    ("match", "lsat", "random"),
    ("match", "random", "lsat@0.5"),
    ("solve", "lsat", "suite.epd"),
    ("export", "lsat", "out"),
    ("uci", "--model", "lsat"),
    ("play", "lsat"),
    ("single-batch", "lsat", "--boards", "boards"),
    ("finetune", "boards", "lsat", "out", "--config", "test"),
    ("show", "lsat"),
    ("compare", "lsat", "last"),
    ("diagnose", "lsat"),
    ("card", "lsat"),
)
"""The commands that take a policy or a run, with a name that nothing has."""
OTHERS = (
    ("doctor",),
    ("doctor", "--json", "--batch"),
    ("doctor", "--repair"),
    ("doctor", "--stale", "30"),
    ("runs",),
    ("runs", "--json"),
    ("sweep", "test", "--seeds", "0", "1", "--show"),
    ("export", "champion", "out"),
    ("play", "champion", "--page"),
    ("ui", "--port", "5999"),
    ("track",),
    ("track", "--list"),
)
"""The others that ask the tracking store."""
WITHOUT_STORE = (
    ("boards", "inspect", "suite.epd"),
    (
        "boards",
        "build",
        "made",
        "--config",
        "test",
        "--set",
        "boards.source=files",
        "--set",
        f"boards.files=ftp://me:{PASSWORD}@host/x.pgn",
    ),
    ("diagnose", "--history", "suite.epd"),
    ("cost", "--config", "smoke"),
    ("plan-games", "--elo", "30"),
)
PLANTED = {
    **dict.fromkeys(("AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "WANDB_API_KEY", "HF_TOKEN"), PASSWORD),
    **dict.fromkeys(("MLFLOW_TRACKING_PASSWORD", "MLFLOW_TRACKING_TOKEN", "METAFLOW_SERVICE_AUTH_KEY"), PASSWORD),
    "CHESS_GRPO_NOTIFY": f"http://127.0.0.1:1/{PASSWORD}",
    "CHESS_GRPO_TRACKING_INTERNAL_URI": f"http://127.0.0.1:1/?password={PASSWORD}",
}
"""Variables of people who run the commands."""
ADDRESSES = (
    f"http://me:{PASSWORD}@127.0.0.1:1",
    f"http://127.0.0.1:1/?password={PASSWORD}",
    f"postgresql://me:{PASSWORD}@127.0.0.1:1/db",
    f"postgresql://127.0.0.1:1/db?user=me&password={PASSWORD}",
    f"nonsense://me:{PASSWORD}@127.0.0.1:1/db",
)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The home of the commands; the working folder has what their other arguments name."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CHESS_GRPO_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    (tmp_path / "boards").mkdir()
    (tmp_path / "boards" / "boards.parquet").write_bytes(b"")
    (tmp_path / "suite.epd").write_text("4k3/8/8/8/8/8/8/4K2R w K - bm Rh8;\n")
    return tmp_path / "home"


def test_each_that_takes_a_policy_or_a_run_looks_for_it_in_the_same_way(
    home: Path, give_tables: Callable[[Path], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    machine = machine_of(give_tables(home))
    Tracker(machine).start_flow_run(metaflow_run="1001", settings={}, tags={}, note="")
    wanted = f"no run or policy in {machine.tracking_uri} is called 'lsat'; did you mean last? give"
    for words in NAMED:
        assert main(words) in (1, 2), words
        assert wanted in capsys.readouterr().err, words
    with pytest.raises(NotFoundError, match=f"--resume-from lsat: {wanted[:20]}.* did you mean last?"):
        find_origin("lsat", machine)


def test_every_command_is_looked_at() -> None:
    asked = (*NAMED, *OTHERS, *WITHOUT_STORE)
    assert {words[0] for words in asked} == set(COMMANDS)
    assert {words[1] for words in asked if words[0] == "boards"} == {"build", "inspect"}
    # The options by which a command does something else.
    options = {"--repair", "--stale", "--batch", "--history", "--page", "--list", "--json"}
    assert {word for words in asked for word in words} >= options


@pytest.mark.parametrize("address", [ADDRESSES[0], *ADDRESSES[3:]])  # Of HTTP, of a database, of nothing; all are cut below.
def test_none_repeats_a_password_in_the_tracking_stores_address_or_any_secret_variable(
    address: str, home: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("steps.tracking.client._PATIENCE", 0.0)
    monkeypatch.setattr("os.execve", lambda *_: None)
    for name, value in {**PLANTED, "MLFLOW_TRACKING_URI": address, "METAFLOW_HOME": str(home / "no-metaflow")}.items():
        monkeypatch.setenv(name, value)
    journals = JournalFolder(home, None)
    journal = journals.begin("parent", "start")
    journal.append("parent_tags", tags={})
    journals.leave(journal)
    for words in (*NAMED, *OTHERS, *WITHOUT_STORE):
        with suppress(AssertionError):  # Of `ui`, whose process would be another program by now.
            main(words)
        said = capfd.readouterr()
        told = said.out + said.err
        assert PASSWORD not in told, words
        assert words[0] != "ui" or not address.startswith("http") or "which has a UI of its own: http://127.0.0.1:1" in told
        assert "Traceback" not in told, words
    assert files_with(home.parent, PASSWORD) == []
    with pytest.raises(TrackingAwayError) as refusal:
        find_origin("last", Machine.here())
    table = preflight_table(preflight(read_settings("test"), Machine.here())[0])
    assert PASSWORD not in f"{refusal.value} {table}"
    assert "MLFLOW_TRACKING_URI holds a name or password" in table


@pytest.mark.parametrize("words", [("show", "last"), ("doctor",), ("ui",), ("runs",), ("uci",)])
def test_a_database_without_a_driver_here_is_named_with_the_remedy(
    words: tuple[str, ...], home: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "postgresql://127.0.0.1:1/db")
    assert main(words) == 1
    said = capfd.readouterr()
    assert re.search(
        r"postgresql://127.0.0.1:1/db needs the Python package psycopg\w*, .*`pip install`", " ".join((said.out + said.err).split())
    )


@pytest.mark.parametrize(
    ("address", "shown"),
    [
        *((address, f"{address.partition('://')[0]}://127.0.0.1:1") for address in ADDRESSES),
        ("postgresql://me:pa?ss@host/db", "postgresql://..."),
        ("postgresql://host/db?password=pa@ss", "postgresql://..."),
        ("http://me:p/w@host:5000", "http://host:5000"),
        ("http://host:5000/at?sslmode=require", "http://host:5000/at"),
        ("sqlite:////home/me@2/mlflow.db", "sqlite:////home/me@2/mlflow.db"),
        ("/some/mlruns", "/some/mlruns"),
    ],
)
def test_an_address_is_cut_where_a_password_may_begin(address: str, shown: str) -> None:
    told = without_secrets(f"API request to {address} failed")
    assert told.startswith(f"API request to {shown}")
    assert told.removesuffix("/").endswith((f"{shown} failed", "/db failed", "1/ failed"))
    assert holds_secret(address) == any(word in address for word in (PASSWORD, "pa?ss", "pa@ss", "p/w"))
