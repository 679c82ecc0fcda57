"""The outputs of a run's steps, written by hand, and the document that the step `report` makes of them."""

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from made_runs import JOINED

from grpo.base.files import write_json, write_manifest
from grpo.match.halving import sequential_halving
from grpo.match.intervals import Estimate, paired_interval
from grpo.match.phase_guard import phase_changes
from grpo.match.verdict import LadderGain, decide
from grpo.policy.files import WEIGHTS, write_facts
from steps.names import CHAMPION, DECISIONS, FINDINGS, HISTORY, REPORT
from steps.pages.results import Results
from steps.report import run_results

CODE = {"commit": "c" * 40, "is_dirty": False, "lock": "d" * 64}
ENGINE = "Stockfish 15.1 (sha256 af67e5f96d92cf6a)"
ENDS = {"checkmate": 40, "stalemate": 4, "insufficient material": 6, "threefold repetition": 45, "fifty moves": 3, "ply cap": 2}
FINDING = {
    "name": "kl_trap",
    "severity": "critical",
    "evidence": ["KL 0.001 at steps 3 to 9"],
    "means": "The anchor holds the policy.",
    "advice": "Set grpo.kl_coefficient = 0.",
    "page": "docs/troubleshooting.md#kl_trap",
}
SETTINGS = {
    "seed": 4,
    "grpo": {"learning_rate": 7e-4, "clip_high": 0.31},
    "evaluation": {"max_plies": 200},
}


def match(score: float, num_pairs: int = 50, **more: Any) -> dict[str, Any]:
    """Return a match in which every pair scored the same, adjudicated one quarter better."""
    played, judged = (
        {**asdict(found), "text": str(found)} for found in (paired_interval([each] * num_pairs) for each in (score, score + 0.25))
    )
    counted = {"wins": 1, "draws": 2, "losses": 3, "ends": ENDS, "num_openings": num_pairs}
    return {**played, **counted, "adjudicated": {**judged, "depth": 10}, **more}


def placement(rating: float) -> dict[str, Any]:
    """Return a place on the ladder."""
    ends = {"low": rating - 20, "high": rating + 20, "low_of_all": rating - 60, "high_of_all": rating + 60}
    games = [{"rung": rung, "rung_rating": 0.0, **match(score, 7)} for rung, score in (("weak", 0.5), ("random", 0.75))]
    return {"rating": rating, **ends, "text": f"{rating:+.0f} Elo by games", "games": games, "probes": []}


def made_reports(*, score: float = 0.75, elo: float = 10.0) -> dict[str, dict[str, Any]]:
    """Return the reports of a run's steps, given the candidate's score against its start and its gain on the ladder."""
    played, judged = (Estimate(value=value, low=value - 30, high=value + 30) for value in (elo, elo + 10))
    trace = sequential_halving([100, 250], lambda candidate, _: [0.75 if candidate == 100 else 0.5] * 8)
    decision = decide(
        100,
        against_initial=[score] * 50,
        against_previous=None,
        beside={"best moves, adjudicated": [1.0] * 5 + [0.5] * 5, "sampled moves at T = 1, as played": [0.5] * 10},
        ladder_gain=LadderGain(played=played, adjudicated=judged, num_pairs=150, num_planned=300),
        phases=phase_changes({"opening": [-0.01, 0.01] * 30, "endgame": [-0.02, 0.0] * 30}, tolerance=0.01),
    )
    rungs = [
        {"name": "random", "rating": 0.0, "low": 0.0, "high": 0.0},
        {"name": "weak", "rating": 225.0, "low": 160.0, "high": 290.0, "gap": 225.0, "gap_low": 160.0, "gap_high": 290.0},
    ]
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
        "calibrate": {"rungs": rungs, "note": "A note.", "engine": ENGINE},
        "baseline": {
            "heldout": {
                "heldout/regret_best": 0.061,
                "heldout/regret_best_stderr": 0.002,
                "heldout/regret_best/opening": 0.0611,
                "heldout/regret_best/endgame": 0.0469,
            },
            "matches": {"random": match(0.75, 30), "stockfish-1-nodes": match(0.25, 31)},
            "ladder": placement(250.0),
        },
        "check_boards": {},
        "finetune": {
            "first_step": 0,
            "last_step": 250,
            "mean_entropy_at_end": 1.7077,
            "reason": "budget_spent",
            "message": "",
            "control": {"control/entropy_saturated": 0.25, "control/recoveries": 1.0},
        },
        "select": json.loads(json.dumps(decision.facts() | {"screening": list(map(asdict, trace.entries))}))
        | {
            "champion_step": 100 if decision.promoted else 0,
            "peak_step": 250,
            "peak_low": 0.5123,
            "peak_high": 0.6123,
            "initial_weights": "1" * 64,
            "candidate_weights": "2" * 64,
            "heldout_regret_best": {"100": {"mean": 0.0485, "stderr": 0.0011}, "250": {"mean": 0.0497, "stderr": 0.0012}},
            "confirmation_best_moves": match(score),
            "confirmation_sampled_moves": match(0.5, 10),
            "previous_champion": None,
            "ladder": placement(260.0),
            "ladder_initial": placement(240.0),
        },
    }


def write_outputs(root: Path, reports: Mapping[str, Mapping[str, Any]]) -> dict[str, Path]:
    """Write outputs with these reports as the store has them, and return their folders."""
    rows = [
        {"step": 0, "heldout/regret_best": 0.061},
        {"step": 100, "heldout/regret_best": 0.0485, "heldout/regret_best_stderr": 0.0011, "heldout/regret_best/endgame": 0.04},
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
            write_facts(folder / CHAMPION, {"kind": "network", "width": 64}, [WEIGHTS])
        if step == "finetune":
            (folder / FINDINGS).parent.mkdir()
            write_json(folder / FINDINGS, {"verdict": "findings", "tag": "kl_trap", "findings": [FINDING]})
        parts = {"inputs": {"engine": ENGINE}, "settings": SETTINGS}
        write_manifest(folder, {"step": step, "version": f"v-{step}", "code": CODE, "parts": parts})
    return folders


def made_results(root: Path, reports: Mapping[str, Mapping[str, Any]] | None = None, *, origin: str = "") -> Results:
    """Return the results of a run with these reports, through JSON and back."""
    results = run_results(write_outputs(root, made_reports() if reports is None else reports), origin=origin)
    return Results.model_validate(results.model_dump(mode="json"))
