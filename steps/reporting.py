"""The run's story on one page: what was compared, on which boards, and how training went."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from grpo.content import read_json, write_json
from grpo.phases import PHASES
from steps.work import Work, read_history

PAGE: Final = "report.md"
FACTS: Final = "report.json"


def write_report(folders: Mapping[str, Path], work: Work) -> None:
    """Write `report.md` for people and `report.json` for the card, from the outputs of all steps by name."""
    facts = {step: read_json(folder / "report.json") for step, folder in folders.items()}
    curve = [
        {"step": record.step, **{name: record.metrics[name] for name in _CURVES if name in record.metrics}}
        for record in read_history(folders["finetune"])
    ]
    write_json(work.folder / FACTS, {"steps": facts, "curve": curve})
    (work.folder / PAGE).write_text(_page(facts), encoding="utf-8")


_CURVES: Final = (
    "grpo/entropy",
    *(f"grpo/entropy/{phase}" for phase in PHASES),
    "grpo/reward_mean",
    "grpo/kl_reference",
    "grpo/clip_fraction",
    "heldout/regret_best",
    "heldout/regret_sampled",
)


def comparison_rows(facts: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the lines of the comparison: what, and score with 95 % interval."""
    decision = facts["select"]
    rows = [
        (f"step {decision['candidate_step']:,} against pretrained, best moves", decision["confirmation_best_moves"]["text"]),
        (f"step {decision['candidate_step']:,} against pretrained, sampled at T = 1", decision["confirmation_sampled_moves"]["text"]),
    ]
    for name, match in facts["baseline"]["matches"].items():
        rows.append((f"pretrained against {name}, best moves", match["text"]))
        if "adjudicated" in match:
            rows.append((f"the same, undecided games by depth {match['adjudicated']['depth']}", match["adjudicated"]["text"]))
    return rows


def ladder_rows(facts: Mapping[str, Any]) -> list[tuple[str, str, str, str]]:
    """Return the ladder from its highest rung down, with who was placed on it: who, Elo, gap to the rung below, score against the rung."""
    against = {part["rung"]: f"{part['score']:.3f}" for part in facts["baseline"]["ladder"]["games"]}
    rows = [
        (
            rung["rating"],
            rung["name"],
            _elo(rung["rating"], rung["low"], rung["high"]),
            _elo(rung["gap"], rung["gap_low"], rung["gap_high"]) if "gap" in rung else "",
            against.get(rung["name"], ""),
        )
        for rung in facts["calibrate"]["rungs"]
    ]
    placed = facts["baseline"]["ladder"]
    rows.append((placed["rating"], "**pretrained**", f"**{_elo(placed['rating'], placed['low_of_all'], placed['high_of_all'])}**", "", ""))
    return [row[1:] for row in sorted(rows, key=lambda row: -row[0])]


def _elo(middle: float, low: float, high: float) -> str:
    return f"{middle:+,.0f} [{low:+,.0f}, {high:+,.0f}]" if (low, high) != (middle, middle) else f"{middle:.0f}"


def phase_rows(facts: Mapping[str, Any]) -> list[tuple[str, int, int]]:
    """Return for each phase the positions met in the source and the boards kept."""
    boards = facts["join_boards"]
    return [(phase.value, boards["natural_phases"][phase], boards["phases"][phase]) for phase in PHASES]


def _page(facts: Mapping[str, Any]) -> str:
    decision, imitation, training = facts["select"], facts["pretrain"], facts["finetune"]
    ended = "the validation loss had stopped falling" if imitation["has_converged"] else "max_steps was reached: NOT converged"
    comparison = "\n".join(f"| {what} | {score} |" for what, score in comparison_rows(facts))
    control = training["control"]
    phases = "\n".join(f"| {phase} | {met:,} | {kept:,} |" for phase, met, kept in phase_rows(facts))
    ladder = "\n".join(f"| {' | '.join(row)} |" for row in ladder_rows(facts))
    ends = ", ".join(f"{count} {end}" for end, count in decision["confirmation_best_moves"]["ends"].items() if count)
    return f"""# Verdict: {decision["verdict"]}

Scores are of fresh paired games, with 95 % intervals; only games played after the candidate was chosen are reported.

| match | score |
| --- | --- |
{comparison}

Confirmation games ended by: {ends}.

## How it got there

- Imitation took {imitation["num_steps"]:,} steps and ended because {ended}: validation loss {imitation["validation_loss"]:.3f} nats,
  top-1 {imitation["top1"]:.3f}, top-5 {imitation["top5"]:.3f}, entropy {imitation["entropy"]:.2f} nats.
- GRPO went from step {training["first_step"]:,} to {training["last_step"]:,} and ended by `{training["reason"]}`{_because(training)};
  entropy at T = 1 was {_nats(training["mean_entropy_at_end"])} then (mean of the last steps).
- The entropy controller stood at a bound in {control["control/entropy_saturated"]:.0%} of the steps and changed nothing in
  {control["control/entropy_idle"]:.0%}; recoveries from critical entropy: {control["control/recoveries"]:.0f}.
- Champion: {"the pretrained policy" if decision["champion_step"] == 0 else f"step {decision['champion_step']:,}"}.
  Peak, to resume from: step {decision["peak_step"]:,}.

## Ladder

{facts["calibrate"]["note"]} Engine: {facts["calibrate"]["engine"]}.

| opponent | Elo | above the next lower rung | pretrained scored |
| --- | --- | --- | --- |
{ladder}

Pretrained policy, best moves: {facts["baseline"]["ladder"]["text"]} (this interval takes the rungs' ratings as exact).

## Boards

| phase | met in the source | kept |
| --- | --- | --- |
{phases}
"""


def _because(training: Mapping[str, Any]) -> str:
    return f" ({training['message']})" if training["message"] else ""


def _nats(entropy: float | None) -> str:
    return "not known (a rollback had just been made)" if entropy is None else f"{entropy:.2f} nats"
