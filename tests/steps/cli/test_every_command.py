"""Every command knows the same names of runs and policies; no message has the password of the tracking store's address."""

import errno
import socket
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from canary import files_with
from made_runs import MadeRun, machine_of, make_run
from presets import TEST

from steps.cli.main import COMMANDS, main
from steps.job.resume import find_origin
from steps.track.find import NotFoundError

PASSWORD = "S3cretPassw0rd"
NAMED = (
    ("match", "lsat", "random"),
    ("solve", "lsat", "suite.epd"),
    ("export", "lsat", "out"),
    ("uci", "--model", "lsat"),
    ("play", "lsat"),
    ("show", "lsat"),
    ("compare", "lsat", "last"),
    ("diagnose", "lsat"),
    ("card", "lsat"),
)
"""The commands that take a policy or a run, with a name that nothing has."""
OTHERS = (("doctor",), ("runs",), ("sweep", TEST, "--seeds", "0", "--show"), ("ui", "--port", "5999"), ("track",))
"""The others that ask the tracking store."""
SECRETS = ("AWS_SECRET_ACCESS_KEY", "WANDB_API_KEY", "HF_TOKEN", "MLFLOW_TRACKING_PASSWORD", "MLFLOW_TRACKING_TOKEN")
ADDRESSES = (f"http://me:{PASSWORD}@127.0.0.1:1", f"postgresql://127.0.0.1:1/db?user=me&password={PASSWORD}")


@pytest.fixture(autouse=True)
def _there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The working folder has what the commands' other arguments name."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "suite.epd").write_text("4k3/8/8/8/8/8/8/4K2R w K - bm Rh8;\n")


def test_each_that_takes_a_policy_or_a_run_looks_for_it_in_the_same_way(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    machine = machine_of(home)
    make_run(machine, MadeRun(name="1001", until="pretrain"))
    wanted = f"no run or policy in {home} is called 'lsat'"
    for words in NAMED:
        assert main(words) in (1, 2), words
        assert wanted in capsys.readouterr().err, words
    with pytest.raises(NotFoundError, match=wanted):
        find_origin("lsat", "smoke", machine)


@pytest.mark.parametrize("words", [("sweep", TEST, "--seeds", "0"), ("card", "1001/pretrain")])
def test_a_home_that_may_not_be_written_is_named(
    words: tuple[str, ...], home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    make_run(machine_of(home), MadeRun(name="1001", until="pretrain"))

    def barred(path: Path, *_: object, **__: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", str(home.parent))

    monkeypatch.setattr(Path, "mkdir", barred)
    assert main(words) == 1
    assert f"{home}" in (said := capsys.readouterr().err)
    assert "could not be written (Permission denied)" in said
    assert "set CHESS_GRPO_HOME" in said


def test_a_device_that_does_not_exist_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["uci", "--device", "gpu"]) == 2
    assert "'gpu' is not one of" in capsys.readouterr().err


def test_ui_does_not_show_the_page_of_whoever_has_its_port(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_run(machine_of(home), MadeRun(name="1001", until="pretrain"))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert main(("ui", "--port", str(port))) == 1
    said = capsys.readouterr()
    assert f"--port {port}: Address already in use" in said.err
    assert "All runs" not in said.out


@pytest.mark.parametrize("address", ADDRESSES)
def test_none_repeats_a_password_in_the_tracking_stores_address_or_any_secret_variable(
    address: str, home: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    assert {words[0] for words in (*NAMED, *OTHERS)} <= COMMANDS.keys()
    monkeypatch.setattr("os.execve", lambda *_: None)
    for name, value in {**dict.fromkeys(SECRETS, PASSWORD), "MLFLOW_TRACKING_URI": address, "METAFLOW_HOME": str(home / "none")}.items():
        monkeypatch.setenv(name, value)
    make_run(replace(machine_of(home), tracking_uri=address), MadeRun(name="1001", until="screen"))
    for words in (*NAMED, *OTHERS, ("uci",), ("play",)):
        with suppress(AssertionError):  # Of `ui`, whose process would be another program by now.
            main(words)
        said = capfd.readouterr()
        assert PASSWORD not in said.out + said.err, words
        assert "Traceback" not in said.out + said.err, words
    assert files_with(home.parent, PASSWORD) == []
