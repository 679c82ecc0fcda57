"""`chess-grpo runs`, `show` and `compare`: what the tracking store was told is found again, and no more is concluded than it shows."""

from collections.abc import Callable
from pathlib import Path

import pytest
from logged_runs import LoggedRun, log_run, machine_of, made_version

from grpo.statistics.intervals import Unit
from steps.cli.main import main
from steps.runs.comparison import Comparison, compare_runs
from steps.runs.index import find_run, read_runs
from steps.runs.names import NotFoundError
from steps.runs.places import findings
from steps.runs.results import ResultComparison, compare_results, run_document, run_measurements
from steps.runs.settings import from_preset
from steps.runtime.machine import Machine
from steps.step_io.results import Measurement

FINDING = {
    "name": "entropy_collapse",
    "severity": "critical",
    "evidence": ["0.4 nats at step 90", "1.9 at the start"],
    "cause": "The policy has nearly one move left.",
    "remedy": "Raise grpo.entropy_coefficient.",
    "page": "docs/diagnosis.md#entropy_collapse",
}
FASTER = 'preset = "smoke"\ngrpo.learning_rate = 5e-3\nseed = 4'
FILES = "lichess.pgn.zst 512 boards (1.2% read), chess_com.pgn 208 boards (100% read)"
FIRST = LoggedRun(name="1001", champion_step=0, sources=FILES)
SECOND = LoggedRun(name="1002", settings=FASTER, score=(0.75, 0.7, 0.8), regret_after=0.03, is_beaten=False, findings=[FINDING])
OTHER_START = LoggedRun(name="1003", initial_weights="start-b", dataset="boards-b", ladder="ladder-b", is_beaten=False)
KILLED = LoggedRun(name="1004", last="baseline")


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory, give_tables: Callable[[Path], Path]) -> tuple[Machine, dict[str, str]]:
    """Return a machine whose store was told of four runs, and MLflow's ids by Metaflow's."""
    machine = machine_of(give_tables(tmp_path_factory.mktemp("home")))
    return machine, {run.name: log_run(machine, run, ends=run is not KILLED) for run in (FIRST, SECOND, OTHER_START, KILLED)}


@pytest.fixture
def typed(told: tuple[Machine, dict[str, str]], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """Return what runs the command in that home, and returns what it prints."""
    monkeypatch.setenv("CHESS_GRPO_HOME", str(told[0].home))
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.setenv("COLUMNS", "90")

    def command(*words: str) -> str:
        capsys.readouterr()
        assert main(words) == 0
        return capsys.readouterr().out

    return command


# Found.


def test_runs_are_found_newest_first_with_steps_policies_and_settings(told: tuple[Machine, dict[str, str]]) -> None:
    runs = read_runs(told[0])
    assert [run.metaflow_run for run in runs] == ["1004", "1003", "1002", "1001"]
    assert [run.status for run in runs] == ["running", "finished", "finished", "finished"]
    assert [run.aliases for run in runs] == [(), ("peak",), (), ("champion",)]
    first = runs[-1]
    assert [step.name for step in first.steps] == ["join_boards", "calibrate", "pretrain", "baseline", "finetune", "select", "report"]
    assert [(policy.role, policy.version.policy_step) for policy in first.policies] == [("peak", 120), ("champion", 0)]
    assert first.settings["grpo.learning_rate"] == "0.001"
    assert runs[0].output_of("select") is None
    assert len(read_runs(told[0], last=2)) == 2


@pytest.mark.parametrize(("name", "run"), [("last", "1003"), ("v1", "1001"), ("champion", "1001"), ("peak", "1003"), ("1002", "1002")])
def test_a_run_is_found_by_what_people_call_it(name: str, run: str, told: tuple[Machine, dict[str, str]]) -> None:
    assert find_run(name, told[0]).metaflow_run == run


def test_looking_changes_nothing_and_a_store_that_is_not_there_is_not_made(
    tmp_path: Path, told: tuple[Machine, dict[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    machine, _ = told
    before = (machine.home / "mlflow.db").read_bytes()
    compare_runs(find_run("1001", machine), find_run("1002", machine), machine)
    assert (machine.home / "mlflow.db").read_bytes() == before
    assert read_runs(machine_of(tmp_path / "home")) == []
    with pytest.raises(NotFoundError, match=r"no runs in sqlite:.* yet, so .* names none: `make run CONFIG=smoke`"):
        find_run("last", machine_of(tmp_path / "home"))
    assert list(tmp_path.iterdir()) == []


# Settings.


def test_settings_are_told_from_the_preset_they_are_nearest_to(told: tuple[Machine, dict[str, str]]) -> None:
    machine, _ = told
    assert str(from_preset(find_run("1001", machine).settings)) == "smoke"
    found = from_preset(find_run("1002", machine).settings)
    assert (found.preset, found.num_unknown) == ("smoke", 0)
    assert found.changed == {"grpo.learning_rate": ("0.001", "0.005"), "seed": ("0", "4")}
    assert str(found) == "smoke, seed=4 and 1 more"


# Numbers.


def test_numbers_come_with_their_intervals_and_the_candidates_regret_is_that_of_its_step(told: tuple[Machine, dict[str, str]]) -> None:
    machine, _ = told
    run = find_run("1002", machine)
    found = {each["name"]: each for each in run_measurements(run, run_document(run, machine))}
    numbers = {name: (each["value"], each["low"], each["high"]) for name, each in found.items()}
    assert numbers["candidate against pretrained, best moves, as played"] == (0.75, 0.7, 0.8)
    assert numbers["pretrained on the ladder before GRPO, other openings"] == (500, 400, 600)
    assert numbers["held-out regret, candidate"] == pytest.approx((0.03, 0.03 - 1.96 * 0.005, 0.03 + 1.96 * 0.005), abs=1e-5)
    assert numbers["held-out regret, pretrained"][0] == 0.08
    assert "candidate against the champion before" not in numbers, "there was none"


def test_before_the_report_the_same_measurements_come_from_mlflows_metrics(told: tuple[Machine, dict[str, str]]) -> None:
    machine, _ = told
    killed, finished = find_run("1004", machine), find_run("1001", machine)
    assert run_document(killed, machine) is None
    document = {each["name"]: each for each in run_measurements(finished, run_document(finished, machine))}
    of_metrics = run_measurements(killed, None)
    assert [each["name"] for each in of_metrics] == [
        "pretrained against a random mover",
        "pretrained against Stockfish, nodes 1",
        "pretrained on the ladder before GRPO, other openings",
        "held-out regret, pretrained",
    ]
    for each in of_metrics:
        assert each | {"output": ""} == document[each["name"]] | {"output": ""}, "the same but for the output"


def test_the_document_of_a_run_elsewhere_comes_from_mlflow(told: tuple[Machine, dict[str, str]], tmp_path: Path) -> None:
    elsewhere = machine_of(tmp_path / "elsewhere", told[0].tracking_uri)
    run = find_run("1002", elsewhere)
    assert run_document(run, elsewhere) == run_document(run, told[0]) != None  # noqa: E711
    assert findings(run, run_document(run, elsewhere), elsewhere) == [FINDING]


def result(value: float, half: float, *, unit: Unit = Unit.SCORE, output: str = "a", **yardstick: str | None) -> Measurement:
    ends = {"value": value, "low": value - half, "high": value + half}
    return Measurement(name="it", output=output, unit=unit, num_games=None, yardstick=yardstick, **ends)  # type: ignore[typeddict-item]


def only(first: Measurement | None, second: Measurement | None) -> ResultComparison:
    (row,) = compare_results([first] if first else [], [second] if second else [])
    return row


def test_a_difference_of_independent_samples_has_an_interval_of_its_own() -> None:
    row = only(result(0.6, 0.03, opponent="x"), result(0.5, 0.04, output="b", opponent="x"))
    assert row.difference is not None
    assert row.difference.value == pytest.approx(0.1)
    assert row.difference.low == pytest.approx(0.1 - 0.05)  # 3, 4, 5.
    assert row.difference.high == pytest.approx(0.1 + 0.05)
    assert row.better == 1


@pytest.mark.parametrize(("unit", "better"), [(Unit.SCORE, 1), (Unit.ELO, 1), (Unit.REGRET, 2)])
def test_of_regret_the_lower_is_better(unit: Unit, better: int) -> None:
    assert only(result(0.6, 0.01, unit=unit, by="x"), result(0.5, 0.01, unit=unit, output="b", by="x")).better == better
    assert only(result(0.5, 0.01, unit=unit, by="x"), result(0.6, 0.01, unit=unit, output="b", by="x")).better == 3 - better


@pytest.mark.parametrize("other", [{"by": "y"}, {"by": None}, {}])
def test_numbers_of_other_or_unknown_yardsticks_have_no_difference(other: dict[str, str | None]) -> None:
    for first, second in ((result(0.6, 0.01, by="x"), result(0.5, 0.01, output="b", **other)),) * 2:
        assert only(first, second).apart == ("by",)
        assert only(second, first).apart == ("by",)
        assert only(first, second).difference is None
    unknown = result(0.6, 0.01, by=None)
    assert only(unknown, unknown | {"output": "b"}).apart == ("by",), "two unknown ones need not be the same"


def test_the_same_output_is_one_measurement_and_no_second_one() -> None:
    row = only(result(0.6, 0.01, by="x"), result(0.6, 0.01, by="x"))
    assert row.is_one_measurement
    assert row.difference is None


# Concluded.


def comparison(first: str, second: str, told: tuple[Machine, dict[str, str]]) -> Comparison:
    return compare_runs(find_run(first, told[0]), find_run(second, told[0]), told[0])


def test_runs_from_one_pretrained_policy_are_compared_number_by_number(told: tuple[Machine, dict[str, str]]) -> None:
    found = comparison("1002", "1001", told)
    text = "\n".join(found.conclusions)
    assert "A did better in: held-out regret, candidate; candidate against pretrained, best moves, as played" in text
    assert "No difference is shown (which does not mean that there is none) in: pretrained against a random mover" in text
    assert "Not comparable" not in text
    assert found.settings == {"grpo.learning_rate": ("0.005", "0.001"), "seed": ("4", "0")}


def test_runs_from_other_pretrained_policies_boards_and_ladders_are_not_comparable_and_the_match_that_is_is_named(
    told: tuple[Machine, dict[str, str]],
) -> None:
    found = comparison("1002", "1003", told)
    reasons = "\n".join(line for line in found.conclusions if line.startswith("Not comparable"))
    for reason in ("pretrained policy", "ladder", "held-out boards"):
        assert f"because {reason} differs or is not known" in reasons
    shown = [row.name for row in found.rows if row.difference is not None]
    assert all(name.startswith("pretrained against") for name in shown), "the same opponents"
    assert found.match == "chess-grpo match v4 v6 --pairs 300"


# Printed.


def test_runs_are_listed_shown_and_compared_in_words(typed: Callable[..., str], told: tuple[Machine, dict[str, str]]) -> None:
    listed = typed("runs")
    assert [line.split()[0] for line in listed.splitlines() if not line.startswith(" ")][:4] == ["1004", "1003", "1002", "1001"]
    for words in ("smoke, seed=4 and 1 more", "better. Step 120 beats its own start", "entropy_collapse", FILES):
        assert words in " ".join(listed.split()), words
    shown = typed("show", "1002")
    for words in (
        "Run 1002: finished after",
        "grpo.learning_rate = 0.005  (preset: 0.001)",
        "Results: better",
        "0.750 [0.700, 0.800]",
        "critical: entropy_collapse: 0.4 nats at step 90",
        f"{told[0].home}/outputs/select/{made_version('select', '1002')}/champion",
        f"#/experiments/1/runs/{told[1]['1002']}",
    ):
        assert words in shown, words
    assert "python flows/chess_grpo.py --no-pylint resume --origin-run-id 1004` resumes it" in " ".join(typed("show", "1004").split())
    compared = typed("compare", "1002", "1003")
    assert "A - B  not comparable" in compared
    assert "chess-grpo match v4 v6 --pairs 300" in compared
