"""The outputs of a run's steps, written by hand, and the document that the step `report` makes of them."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from made_runs import JOINED

from grpo.base.documents import write_document
from grpo.base.files import write_json, write_manifest
from grpo.diagnosis.findings import Diagnosis, Finding, Severity
from grpo.match.ladder import BaselineReport, LadderReport, Placement, RatedRung, RungMatch
from grpo.match.matches import MatchReport
from grpo.match.selection import Selection
from grpo.policy.files import WEIGHTS, write_facts
from grpo.statistics.halving import sequential_halving
from grpo.statistics.intervals import Estimate, paired_interval, regret_interval
from grpo.statistics.phase_guard import phase_changes
from grpo.statistics.verdict import LadderGain, decide
from steps.names import CHAMPION, DECISIONS, FINDINGS, HISTORY, REPORT
from steps.pages.results import Results
from steps.report import run_results

CODE = {"commit": "c" * 40, "is_dirty": False, "lock": "d" * 64}
ENGINE = "Stockfish 15.1 (sha256 af67e5f96d92cf6a)"
ENDS = {"checkmate": 40, "stalemate": 4, "insufficient material": 6, "threefold repetition": 45, "fifty moves": 3, "ply cap": 2}
FINDING = Finding(
    name="kl_trap",
    severity=Severity.CRITICAL,
    evidence=("KL 0.001 at steps 3 to 9",),
    first_step=3,
    last_step=9,
    means="The anchor holds the policy.",
    advice="Set grpo.kl_coefficient = 0.",
)
DIAGNOSIS = Diagnosis(findings=(FINDING,), verdict="findings", words="healthy")
SETTINGS = {
    "seed": 4,
    "policy": {"kind": "network"},
    "grpo": {"learning_rate": 7e-4, "clip_high": 0.31},
    "evaluation": {"max_plies": 200},
}


def match(score: float, num_pairs: int = 50) -> MatchReport:
    """Return a match in which every pair scored the same, adjudicated one quarter better."""
    played, judged = (paired_interval([each] * num_pairs) for each in (score, score + 0.25))
    pairs = tuple(num_pairs * (score == place / 4) for place in range(5))
    counted = {"wins": 1, "draws": 2, "losses": 3, "ends": ENDS, "num_openings": num_pairs, "answers": {}}
    return MatchReport(score=played, pairs=pairs, adjudicated=judged, **counted)


def placement(rating: float) -> Placement:
    near, wide = (Estimate(value=rating, low=rating - margin, high=rating + margin) for margin in (20, 60))
    scores = {"stockfish-1-nodes": 0.5, "random": 0.75}
    games = tuple(RungMatch(rung=rung, rung_rating=0.0, match=match(score, 7)) for rung, score in scores.items())
    return Placement(rating=near, rating_of_all=wide, reach="within", games=games, probes=())


def ladder() -> LadderReport:
    nothing, gap = Estimate(value=0.0, low=0.0, high=0.0), Estimate(value=225.0, low=160.0, high=290.0)
    rungs = (
        RatedRung(nodes=1, random_share=1.0, rating=nothing, gap=None),
        RatedRung(nodes=1, random_share=0.0, rating=gap, gap=gap),
    )
    return LadderReport(engine=ENGINE, note="A note.", rungs=rungs, covariance=((0.0, 0.0), (0.0, 1_100.0)), meetings=())


def selection(score: float, elo: float) -> Selection:
    """Return a decision on step 100, given its score against its start and its gain on the ladder; step 250 was screened, too."""
    played, judged = (Estimate(value=value, low=value - 30, high=value + 30) for value in (elo, elo + 10))
    decision = decide(
        100,
        against_initial=[score] * 50,
        against_previous=None,
        beside={"best moves, adjudicated": [1.0] * 5 + [0.5] * 5, "sampled moves at T = 1, as played": [0.5] * 10},
        ladder_gain=LadderGain(played=played, adjudicated=judged, num_pairs=150, num_planned=300),
        phases=phase_changes({"opening": [-0.01, 0.01] * 30, "endgame": [-0.02, 0.0] * 30}, tolerance=0.01),
    )
    return Selection(
        **dict(decision),
        champion_step=100 if decision.promoted else 0,
        peak_step=100,
        peak=match(score).score,
        screening=sequential_halving([100, 250], lambda *_: {100: [0.75] * 8, 250: [0.5] * 8}).entries,
        heldout_regret_best={100: regret_interval(0.0485, 0.0011), 250: regret_interval(0.0497, 0.0012)},
        confirmation_best_moves=match(score),
        confirmation_sampled_moves=match(0.5, 10),
        ladder=placement(260.0),
        ladder_initial=placement(240.0),
        initial_weights="1" * 64,
        candidate_weights="2" * 64,
    )


def made_reports(*, score: float = 0.75, elo: float = 10.0) -> dict[str, dict[str, Any]]:
    """Return the reports of a run's steps, given the candidate's score against its start and its gain on the ladder."""
    heldout = {
        "heldout/regret_best": 0.061,
        "heldout/regret_best_stderr": 0.002,
        "heldout/acpl": 45.25,
        "heldout/accuracy": 91.34,
        "heldout/blunders": 0.041,
        "heldout/regret_best/opening": 0.0611,
        "heldout/regret_best/endgame": 0.0469,
    }
    matches = {"random": match(0.75, 30), "stockfish-1-nodes": match(0.25, 31)}
    return {
        "join_boards": dict(JOINED),
        "pretrain": {
            "num_steps": 1_400,
            "best_step": 1_250,
            "validation_loss": 2.3612,
            "top1": 0.2937,
            "top5": 0.684,
            "entropy": 2.25,
        },
        "calibrate": ladder().model_dump(mode="json"),
        "baseline": BaselineReport(heldout=heldout, matches=matches, ladder=placement(250.0)).model_dump(mode="json"),
        "check_boards": {},
        "finetune": {
            "first_step": 0,
            "last_step": 250,
            "mean_entropy_at_end": 1.7077,
            "reason": "budget_spent",
            "message": "",
            "control": {"control/entropy_saturated": 0.25, "control/recoveries": 1.0},
        },
        "select": selection(score, elo).model_dump(mode="json"),
    }


def write_outputs(root: Path, reports: Mapping[str, Mapping[str, Any]], *, book: str = "") -> dict[str, Path]:
    rows = [
        {"step": 0, "heldout/regret_best": 0.061},
        {"step": 100, "heldout/regret_best": 0.0485, "heldout/regret_best_stderr": 0.0011, "heldout/regret_best/endgame": 0.04}
        | {"heldout/accuracy": 92.0, "heldout/blunders": 0.0321},
        {"step": 250, "grpo/entropy": 1.5, "grpo/loss": 1.0},
    ]
    folders = {step: root / "outputs" / step / f"v-{step}" for step in reports}
    for step, folder in folders.items():
        folder.mkdir(parents=True)
        write_json(folder / REPORT, reports[step])
        (folder / HISTORY).write_text("".join(json.dumps(row) + "\n" for row in rows if step == "finetune"))
        if step == "select":
            write_json(folder / DECISIONS, {"num_boards": 30, "improved": [], "worsened": [], "worst": [], "best": []})
            (folder / CHAMPION).mkdir()
            write_facts(folder / CHAMPION, {"kind": "network", "network": "replies", "width": 64}, [WEIGHTS])
        if step == "finetune":
            (folder / FINDINGS).parent.mkdir()
            write_document(folder / FINDINGS, DIAGNOSIS)
        inputs = {"engine": ENGINE} | ({"opening book": book} if book and step == "baseline" else {})
        parts = {"inputs": inputs, "settings": SETTINGS}
        write_manifest(folder, {"step": step, "version": f"v-{step}", "code": CODE, "parts": parts})
    return folders


def made_results(root: Path, reports: Mapping[str, Mapping[str, Any]] | None = None, *, origin: str = "", book: str = "") -> Results:
    """Return the results of a run with these reports, through JSON and back."""
    results = run_results(write_outputs(root, made_reports() if reports is None else reports, book=book), origin=origin)
    return Results.model_validate(results.model_dump(mode="json"))
