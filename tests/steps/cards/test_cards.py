"""Cards: what is on them, that it is text whatever it was, and that drawing them stays cheap."""

import html
import itertools
import json
import math
import random
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import chess
import pytest
from made_results import made_results
from metaflow.plugins.cards.component_serializer import ComponentStore

from grpo.base.files import write_json
from grpo.board.phases import PHASES
from grpo.metrics.table import METRICS, TERMS, Event, Record
from grpo.settings.tree import read_settings
from grpo.statistics.intervals import Estimate, Unit, elo
from steps.cards import live
from steps.cards.boards import board_svg, decision_boards
from steps.cards.charts import MAX_POINTS, ChartLine, Interval, interval_figure, line_chart, smoothed, thinned
from steps.cards.data_pages import phase_chart
from steps.cards.games_pages import checkpoint_figures
from steps.cards.html import CardPart, Chart, Html, html_table, paragraph, progress_bar
from steps.cards.metric_tables import metric_figure
from steps.cards.registry import PAGES, watch
from steps.cards.report_page import end_page
from steps.cards.state import Seen
from steps.cards.style import STYLE
from steps.cards.training_pages import draw_findings, finetune_page
from steps.step_io.names import FINDINGS
from steps.step_io.results_text import headline_table
from steps.step_io.spec import StepSpan

SETTINGS = read_settings("preset = 'test'").model_dump(mode="json")
EVIL = "<script>alert(1)</script>\n\n<img src=x onerror=alert(2)>[x](javascript:y)"


def markup(parts: list[CardPart]) -> str:
    return "".join(part.markup for part in parts if isinstance(part, Html))


def charts(parts: list[CardPart]) -> dict[str, dict[str, Any]]:
    return {part.spec["title"]["text"]: part.spec for part in parts if isinstance(part, Chart)}


def lines_of(spec: dict[str, Any]) -> dict[str, list[tuple[float, float]]]:
    found: dict[str, list[tuple[float, float]]] = {}
    for row in spec["data"]["values"]:
        found.setdefault(row["of"], []).append((row["x"], row["y"]))
    return found


def grpo_record(step: int, *events: Event, **metrics: float) -> Record:
    names = ["grpo/entropy", *(f"grpo/entropy/{phase}" for phase in PHASES), "grpo/log_num_legal", "grpo/reward_mean", "grpo/kl_reference"]
    shares = {f"grpo/logit_share/{term}": 1 / len(TERMS) for term in TERMS}
    given = {name.replace("__", "/"): value for name, value in metrics.items()}
    return Record(step, dict.fromkeys(names, 1.5) | shares | given, events)


# Parts.


@pytest.mark.parametrize(
    "made",
    [
        paragraph(EVIL),
        html_table([EVIL], [[EVIL, 1.0]], caption=EVIL),
        progress_bar(1, 2, EVIL),
        draw_findings([dict.fromkeys(("name", "severity", "cause", "remedy", "page"), EVIL) | {"evidence": [EVIL]}]).markup,
    ],
)
def test_whatever_is_given_is_text_on_one_line_for_an_empty_line_would_end_the_html(made: str) -> None:
    assert "<script" not in made
    assert "<img" not in made
    assert "\n" not in made
    assert "](" not in made
    assert "&lt;script&gt;alert(1)&lt;/script&gt; &lt;img" in made


def test_the_style_sheet_has_a_dark_side_and_a_phones_and_asks_nothing_of_the_network() -> None:
    assert "prefers-color-scheme: dark" in STYLE.markup
    assert "max-width: 48rem" in STYLE.markup
    assert "http" not in STYLE.markup
    assert "@import" not in STYLE.markup


# Charts.


def test_a_thinned_line_keeps_its_ends_its_lowest_and_highest_points_and_its_order() -> None:
    rng = random.Random(1)
    points = [(float(step), rng.random()) for step in range(5_000)]
    points[3_333] = (3_333.0, 9.0)
    points[777] = (777.0, -9.0)
    kept = thinned(points)
    assert len(kept) <= MAX_POINTS
    assert kept[0] == points[0]
    assert kept[-1] == points[-1]
    assert {(3_333.0, 9.0), (777.0, -9.0)} <= set(kept)
    assert kept == sorted(kept)


def test_a_short_line_is_whole_but_for_what_is_no_number() -> None:
    points = [(0.0, 1.0), (1.0, math.nan), (2.0, math.inf), (3.0, 4.0)]
    assert thinned(points) == [(0.0, 1.0), (3.0, 4.0)]
    spec = line_chart("a", "nats", [ChartLine(label="b", points=points, colour="#000")]).spec
    assert lines_of(spec) == {"b": [(0.0, 1.0), (3.0, 4.0)]}
    json.dumps(spec, allow_nan=False)


@pytest.mark.parametrize(("low", "value", "high"), [(-100.0, 0.0, 300.0), (-75.0, 53.0, 212.0), (0.031, 0.05, 0.11), (7.0, 7.0, 7.0)])
def test_an_interval_bar_lies_on_its_scale_and_its_numbers_stand_beside_it(low: float, value: float, high: float) -> None:
    one = Interval(label="one", estimate=Estimate(value=value, low=low, high=high), kind="games", is_ringed=True)
    other = Interval(label="other", estimate=Estimate(value=value, low=value, high=high), kind="games")
    shown = interval_figure("gain", Unit.ELO, [one, other], zero="even").markup
    left, right = (float(end) for end in re.findall(r'x1="([\d.]+)%" x2="([\d.]+)%" y1="50%"', shown)[0])
    [first, *_, last] = re.findall(r'<text x="([\d.]+)%" [^>]*>([-\d.,]+)<', shown)
    (x0, tick0), (x1, tick1) = ((float(x), float(tick.replace(",", ""))) for x, tick in (first, last))

    def value_at(x: float) -> float:
        return tick0 + (x - x0) / (x1 - x0) * (tick1 - tick0)

    assert [value_at(left), value_at(right)] == pytest.approx([low, high], abs=2e-4 * (tick1 - tick0))
    assert 0 <= left <= right <= 100
    assert f"{one.estimate.text(Unit.ELO)} (peak)" in shown
    assert shown.count("(peak)") == shown.count('fill="none"') == 1
    assert 'class="zero"' in shown


def test_a_long_line_is_drawn_as_its_ema_with_a_stated_half_life_and_its_values_faint_behind() -> None:
    assert smoothed([(0, 0.0), (1, 2.0), (2, math.nan), (3, 5.0)], 1.0) == [(0, 0.0), (1, 2 / 1.5), (3, pytest.approx(5.5 / 1.375))]
    line = ChartLine(label="a", points=[(step, 1.0 + step % 2) for step in range(501)], colour="#000")
    spec = line_chart("a", "nats", [line], marks=[7], marks_name="new games").spec
    assert spec["title"]["subtitle"] == "bold: EMA, half-life 10 steps; faint: each step; vertical: new games"
    faint, bold = (
        next(each for each in spec["layer"] if each["mark"].get(key) == value) for key, value in (("opacity", 0.25), ("strokeWidth", 2.2))
    )
    assert "data" not in faint, "the values themselves"
    assert [row["y"] for row in bold["data"]["values"][-5:]] == pytest.approx([1.5] * 5, abs=0.05)
    spec = line_chart("a", "seconds", [line], is_log=True).spec
    assert spec["title"]["subtitle"] == "", "a spike that is smoothed is no spike"
    assert spec["layer"][0]["encoding"]["y"]["scale"] == {"type": "log"}


def test_a_figure_has_its_unit_and_meanings_from_the_metric_table_and_its_numbers_beside_it() -> None:
    records = [Record(step, {"grpo/entropy": value}) for step, value in enumerate((2.0, 3.0, 0.5, 1.0))]
    chart, beside = metric_figure("entropy", records, {"grpo/entropy": "all"}, levels={"critical": (0.2, "#f00")})
    assert isinstance(chart, Chart)
    assert isinstance(beside, Html)
    assert chart.spec["layer"][0]["encoding"]["y"]["title"] == METRICS["grpo/entropy"].unit == "nats"
    assert lines_of(chart.spec) == {"all": [(0, 2.0), (1, 3.0), (2, 0.5), (3, 1.0)], "critical": [(0, 0.2), (3, 0.2)]}
    numbers = "".join(f'<td class="number">{value}</td>' for value in ("2", "1", "0.5", "3"))
    assert f"all</span></td>{numbers}" in beside.markup
    assert METRICS["grpo/entropy"].meaning in beside.markup


# Pages.


def test_the_entropy_chart_has_all_phases_and_the_floor_the_critical_and_the_ln_legal_line() -> None:
    seen = Seen(SETTINGS, records=[grpo_record(1), grpo_record(2, Event("recovery_started", "now"), grpo__log_num_legal=3.25)])
    spec = charts(finetune_page(seen))["entropy by phase at T = 1"]
    found = lines_of(spec)
    assert set(PHASES) <= found.keys()
    assert found["healthy (floor)"] == [(1, 1.0), (2, 1.0)]
    assert found["critical"] == [(1, 0.01), (2, 0.01)]
    assert found["ln(legal moves): the maximum"][-1] == (2, 3.25)
    [marks] = [layer["data"]["values"] for layer in spec["layer"] if layer["mark"]["type"] == "rule"]
    assert marks == [{"x": 2}]


def test_the_training_card_has_every_chart_that_is_asked_of_it_and_events_latest_first() -> None:
    records = [grpo_record(step, Event("entropy_low", f"told at {step}")) for step in (3, 4)]
    parts = finetune_page(Seen(SETTINGS, records=records))
    words = ("entropy", "reward", "regret", "KL", "clipped", "gradient budget", "saturated", "zero-variance")
    assert all(any(word in title for title in charts(parts)) for word in words)
    assert lines_of(charts(parts)["gradient budget (fractions of the logit gradient)"]).keys() == {
        "policy (reward)", "entropy bonus", "KL to the reference", "recovery KL",
    }  # fmt: skip
    assert [title.split()[0] for title in charts(parts)][:2] == ["reward", "held-out"], "first whether it learns"
    shown = markup(parts)
    assert shown.index("told at 4") < shown.index("told at 3")
    # Every chart has its numbers beside it.
    kinds = [type(part) if isinstance(part, Chart) else part.markup.split('"')[1] for part in parts]
    assert all(after == "numbers" for kind, after in itertools.pairwise(kinds) if kind is Chart)


@pytest.mark.parametrize("step", [step for step in PAGES if step in ("pretrain", "finetune")])
def test_a_live_card_keeps_its_layout_for_a_new_one_makes_metaflow_wait(step: str) -> None:
    page = PAGES[step][1]
    begun, later = Seen(SETTINGS), Seen(SETTINGS, records=[grpo_record(1, Event("entropy_low", "x"), imitation__top1=0.5)])
    later.progressed(1, 2, "steps")
    later.findings = [
        dict.fromkeys(("name", "severity", "cause", "remedy", "page"), "x") | {"evidence": ["y"], "first_step": 1, "last_step": 9}
    ]
    later.learnability = {"severity": "warning", "findings": []}
    assert [type(part) for part in page(begun)] == [type(part) for part in page(later)]
    assert markup(list(page(begun))) != markup(list(page(later)))


def test_a_run_that_goes_on_from_another_says_that_it_built_no_boards(tmp_path: Path) -> None:
    write_json(tmp_path / "report.json", {"rows": 300, "duplicates": 2, "phases": {}})
    assert "none were built" in markup(list(PAGES["build_boards"][1](Seen(SETTINGS, folder=tmp_path))))


def test_findings_are_told_with_evidence_cause_remedy_steps_and_page() -> None:
    finding = {
        "name": "entropy_collapse",
        "severity": "critical",
        "evidence": ["from 2.9 nats to 0.1"],
        "cause": "the bonus is small",
        "remedy": "grpo.entropy_coefficient = 0.03",
        "page": "docs/diagnosis.md#entropy_collapse",
        "first_step": 1_200,
        "last_step": 1_300,
    }
    shown = draw_findings([finding]).markup
    for told in ("entropy_collapse", "critical", "from 2.9", "the bonus", "grpo.entropy_coefficient = 0.03", "#entropy_collapse"):
        assert told in shown
    assert "(steps 1,200 to 1,300)" in shown
    assert "remedy" not in draw_findings([finding | {"severity": "note"}]).markup, "a note has nothing to mend"
    assert "No findings" in draw_findings([]).markup


def test_the_stored_findings_and_learnability_are_shown_when_the_step_had_nothing_to_do(tmp_path: Path) -> None:
    (tmp_path / "history.jsonl").write_text('{"step": 1, "grpo/entropy": 2.5}\n')
    write_json(
        tmp_path / "learnability.json", {"severity": "warning", "findings": [dict.fromkeys(("severity", "name", "seen", "advice"), "w")]}
    )
    facts = dict.fromkeys(("severity", "cause", "remedy", "page"), "x") | {"name": "flat_reward", "evidence": []}
    (tmp_path / FINDINGS).parent.mkdir()
    write_json(tmp_path / FINDINGS, {"verdict": "findings", "findings": [facts]})
    seen = Seen(SETTINGS)
    seen.finish(tmp_path, is_reused=True)
    shown = markup(finetune_page(seen))
    for told in ("flat_reward", "GRPO continues, with warnings.", "reused from the store", "2.5"):
        assert told in shown


def test_the_phase_histogram_is_in_shares_before_and_after() -> None:
    facts = {"natural_phases": {"opening": 1, "middlegame": 1, "endgame": 2}, "phases": {"opening": 10, "middlegame": 10, "endgame": 0}}
    chart, beside = phase_chart(facts)
    assert isinstance(chart, Chart)
    found = {(bar["what"], bar["of"]): bar["share"] for bar in chart.spec["data"]["values"]}
    assert found[("endgame", "found in the source")] == 0.5
    assert found[("endgame", "selected")] == 0.0
    assert found[("opening", "selected")] == 0.5
    assert '<td>endgame</td><td class="number">2</td><td class="number">0</td>' in markup([beside])


def test_the_card_of_the_end_has_verdict_numbers_each_steps_state_and_time_and_a_link_to_mlflow(tmp_path: Path) -> None:
    results = made_results(tmp_path)
    spans = [
        StepSpan(name="build_boards", num_tasks=2, state="reused", begin=0.0, end=5.0),
        StepSpan(name="pretrain", num_tasks=1, state="finished", begin=10.0, end=50.0),
    ]
    parts = end_page(results, spans, {"MLflow run": "http://127.0.0.1:5000/#/experiments/1/runs/ab (`chess-grpo ui` starts it)"})
    shown = markup(parts)
    assert html.escape(results["verdict"]) in shown
    rows = headline_table(results["measurements"])[1]
    assert len(rows) >= 5
    assert all(html.escape(str(name)) in shown for name, *_ in rows)
    assert "<td>build_boards (2 tasks)</td>" in shown
    assert ">reused</span></td><td>5 s</td>" in shown
    assert '<rect x="20.00%" y="25%" width="80.00%"' in shown
    assert '<a href="http://127.0.0.1:5000/#/experiments/1/runs/ab"' in shown
    links = re.findall('<a href="#(.*?)">', shown)
    assert links == ["main-measurements", "flow", "where"]
    assert all(f'<h2 id="{link}">' in shown for link in links)
    assert "did not answer" in markup(end_page(results, [], {}))


def decision(**other: Any) -> dict[str, Any]:
    def interval(score: float) -> dict[str, Any]:
        return {"score": score, "low": score - 0.1, "high": score + 0.1, "num_pairs": 9}

    return {
        "candidate_step": 20,
        "peak_step": 20,
        "scored_by": "played out",
        "screening": [
            {"round": 0, "candidate": 20, "so_far": interval(0.5)},
            {"round": 0, "candidate": 10, "so_far": interval(0.4)},
            {"round": 1, "candidate": 20, "so_far": interval(0.7)},
        ],
        "claims": [{"interval": interval(0.6)}],
        "heldout_regret_best": {"10": {"mean": 0.2, "stderr": 0.1}, "20": {"mean": 0.1, "stderr": 0.05}},
        **other,
    }


SCORES = {"step 10": 0.4, "step 20": 0.7, "step 20, confirmed": 0.6}
"""Of `decision`; of the rounds of the screening the last one counts."""


@pytest.mark.parametrize(("peak", "ringed"), [(20, "step 20, confirmed"), (10, "step 10")])
def test_elo_has_its_interval_and_the_peak_is_ringed_where_it_was_chosen(peak: int, ringed: str) -> None:
    elos, regrets = (figure.markup for figure in checkpoint_figures(decision(peak_step=peak)) if isinstance(figure, Html))
    of = {name: f"{elo(score):+.0f} [{elo(score - 0.1):+.0f}, {elo(score + 0.1):+.0f}]" for name, score in SCORES.items()}
    rows = dict(re.findall(r'<th scope="row">(.*?)</th>.*?<td class="number">(.*?)</td>', elos))
    assert rows == {name: f"{text} (peak)" if name == ringed else text for name, text in of.items()}
    rows = dict(re.findall(r'<th scope="row">(.*?)</th>.*?<td class="number">(.*?)</td>', regrets))
    assert [name for name, text in rows.items() if "(peak)" in text] == [f"step {peak}"]
    assert rows["step 10"].startswith("0.2000 [0.0040, 0.3960]")


# Boards.


def telling(fen: str, chosen: str, best: str, *, regret: float, before: str = "") -> dict[str, Any]:
    def move(uci: str) -> dict[str, Any]:
        return {"move": uci, "probability": 0.25, "value": 0.5}

    found = {"fen": fen, "phase": "opening", "chosen": move(chosen), "best": move(best), "regret": regret, "margin": 0.1}
    return found | {"before": move(before) if before else None}


def test_a_wrong_move_has_two_arrows_and_a_right_one_a_single_one_seen_by_who_moves() -> None:
    black = chess.Board()
    black.push_uci("e2e4")
    wrong = board_svg(telling(black.fen(), "a7a6", "e7e5", regret=0.3))
    right = board_svg(telling(black.fen(), "e7e5", "e7e5", regret=0.0))
    assert (wrong.count("<polygon"), right.count("<polygon")) == (2, 1)
    assert "#e0761b" in wrong
    assert "#2563c9" in wrong
    assert "#1f9d55" in right
    assert chess.svg.board(black, orientation=chess.BLACK, size=320).split("<use")[1] == right.split("<use")[1], "the same corner"


def test_boards_have_their_words_as_text_alternative_a_link_to_lichess_and_what_changed_first() -> None:
    changed, wrong = (telling(chess.STARTING_FEN, "g1f3", "e2e4", regret=0.3, before=before) for before in ("a2a3", ""))
    kinds: dict[str, Any] = {"num_boards": 30, "improved": [], "worsened": [], "best": []}
    shown = decision_boards({**kinds, "worst": [wrong]}, whose="step 6").markup
    assert 'alt="rnbqkbnr/pppppppp/8/8/8/8/PPPPPPPP/RNBQKBNR w KQkq - 0 1: policy Nf3 0.500 (25%); Stockfish e4' in shown
    assert 'src="data:image/svg+xml;base64,' in shown
    link = "https://lichess.org/analysis/rnbqkbnr/pppppppp/8/8/8/8/PPPPPPPP/RNBQKBNR_w_KQkq_-_0_1?color=white"
    assert re.findall(r'"(https?:[^"]*)"', shown) == [link]
    assert "GRPO" not in shown, "nothing to compare with"
    assert "\n" not in shown
    shown = decision_boards({**kinds, "worst": [wrong], "improved": [changed]}, whose="step 6").markup
    titles = re.findall("<h3>(.*?)</h3>", shown)
    assert titles[:2] == ["Moves that GRPO improved most", "Moves that GRPO made worse"]
    assert "GRPO made no move worse." in shown


# Live.


class Card:
    """Metaflow's card, with a count of what a refresh costs."""

    def __init__(self) -> None:
        self._store = ComponentStore(None)
        self.append = self._store.append
        self.num_layouts = self.num_refreshes = 0

    @property
    def components(self) -> list[Any]:
        return list(self._store)

    def clear(self) -> None:
        self._store.clear()
        self.num_layouts += 1

    def refresh(self) -> None:
        self.num_refreshes += 1

    def shown(self) -> str:
        return json.dumps([vars(component) for component in self.components])


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Give a clock that stands still until it is moved."""
    made = SimpleNamespace(now=0.0)
    monkeypatch.setattr("time.monotonic", lambda: made.now)
    return made


@pytest.fixture
def card(monkeypatch: pytest.MonkeyPatch) -> Card:
    made = Card()
    monkeypatch.setattr("metaflow.plugins.cards.component_serializer.create_component_id", lambda component: "drawn twice")
    monkeypatch.setattr(live, "current", SimpleNamespace(card={"train": made, "pretrain": made}))
    return made


def test_a_card_is_refreshed_no_more_than_every_two_seconds_and_ever_more_rarely(card: Card, clock: SimpleNamespace) -> None:
    shown = watch("finetune", SETTINGS)
    times: list[float] = []
    for tick in range(20_000):
        clock.now = tick / 10
        before = card.num_refreshes
        shown.progress(tick, 20_000, "steps")
        times += [clock.now] * (card.num_refreshes - before)
    gaps = [later - earlier for earlier, later in itertools.pairwise(times)]
    assert times[0] == pytest.approx(2)
    assert min(gaps) >= 1.99
    assert gaps[-1] == pytest.approx(30, abs=0.2)
    assert card.num_layouts == 0


def test_progress_is_told_with_rate_and_time_left_as_the_terminal_does(clock: SimpleNamespace) -> None:
    seen = Seen({})
    seen.progressed(100, 1_000, "games")  # So much was done before a kill.
    assert "100 of 1,000 games<" in seen.progress
    clock.now = 20.0
    seen.progressed(200, 1_000, "games")
    assert "200 of 1,000 games, 5/s, about 3 min left" in seen.progress
    assert 'value="0.2000"' in seen.progress


def test_parts_are_updated_in_place(card: Card, clock: SimpleNamespace) -> None:
    shown = watch("finetune", SETTINGS)
    clock.now = 3.0
    shown.log(grpo_record(1))
    first = card.components
    assert len(first) == 1 + len(finetune_page(shown.seen))
    clock.now = 6.0
    shown.log(grpo_record(2, grpo__reward_mean=0.125))
    assert [id(component) for component in card.components] == [id(component) for component in first]
    assert "0.125" in card.shown()
    assert card.num_refreshes == 2


def test_a_finished_step_shows_its_stored_output_and_gives_it_back(card: Card, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "history.jsonl").write_text('{"step": 8, "imitation/top1": 0.25}\n')
    write_json(tmp_path / "report.json", {"num_steps": 8, "has_converged": True, "best_step": 8, "validation_loss": 2.0})
    monkeypatch.setattr(live, "Store", SimpleNamespace(of=lambda machine: SimpleNamespace(open=lambda output: tmp_path)))
    output: Any = {"step": "pretrain", "version": "v", "output_hash": "h", "reused": True}
    assert watch("pretrain").finished(output) is output
    shown = card.shown()
    assert "converged" in shown
    assert "0.25" in shown
    assert card.num_refreshes == 0, "Metaflow draws it once more by itself"


def test_a_finding_that_is_told_is_shown_with_its_cause_and_remedy(card: Card, clock: SimpleNamespace) -> None:
    shown = watch("finetune", SETTINGS)
    for step in range(1, 60):
        shown.log(grpo_record(step, grpo__reward_mean=0.5, grpo__entropy=9.0))
    assert not shown.seen.findings, "it is asked when something was found, not at each record"
    clock.now = 10.0
    shown.log(grpo_record(60, Event("finding", "critical: impossible entropy"), grpo__reward_mean=0.5, grpo__entropy=9.0))
    assert "impossible_entropy" in [finding["name"] for finding in shown.seen.findings]
    assert "docs/diagnosis.md#impossible_entropy" in card.shown()
