"""The run's story on one page: what was compared, on which boards, and how training went."""

import html
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from grpo.base.files import read_json, write_json
from grpo.board.phases import PHASES
from grpo.evaluation.verdict import AGAINST_OTHERS, LadderFinding
from grpo.metrics.table import REWARD_PARTS, TASKS
from grpo.policy.files import LANGUAGE, NETWORK
from steps.step_io.names import DECISIONS, FINDINGS, REPORT, REPORT_PAGE
from steps.step_io.spec import StepSpec
from steps.step_io.work import Work, read_history

SPEC: Final = StepSpec(
    name="report",
    body=__name__,
    inputs=("join_boards", "check_boards", "pretrain", "calibrate", "baseline", "finetune", "select"),
    published=(REPORT_PAGE,),
)


def write_report(folders: Mapping[str, Path], work: Work) -> None:
    """Write `report.md` for people and `report.json` for the card, from the outputs of all steps by name."""
    facts = {step: read_json(folder / "report.json") for step, folder in folders.items()}
    curve = [
        {"step": record.step, **{name: record.metrics[name] for name in _CURVES if name in record.metrics}}
        for record in read_history(folders["finetune"])
    ]
    path = folders["select"] / DECISIONS
    decisions = read_json(path) if path.is_file() else {}  # A language model has none.
    findings = {"findings": read_json(path)} if (path := folders["finetune"] / FINDINGS).is_file() else {}
    write_json(work.folder / REPORT, {"steps": facts, "curve": curve, "decisions": decisions, **findings})
    (work.folder / REPORT_PAGE).write_text(_page(facts), encoding="utf-8")


_CURVES: Final = (
    "grpo/entropy",
    "grpo/log_num_legal",
    *(f"grpo/entropy/{phase}" for phase in PHASES),
    "grpo/reward_mean",
    "grpo/kl_reference",
    "grpo/clip_fraction",
    "language/reward_mean",
    *(f"language/reward/{part}" for part in REWARD_PARTS),
    "language/parse_rate",
    "language/truncated",
    "language/entropy",
    "language/kl_reference",
    "heldout/regret_best",
    "heldout/regret_sampled",
    "heldout/parse_rate",
    "heldout/legal_rate",
)
"""Of those that were measured: a network has others than a language model."""


def comparison_rows(facts: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the lines of the comparison: what, and score with 95 % interval."""
    decision = facts["select"]
    candidate = f"step {decision['candidate_step']:,}"
    rows = [
        *_match_rows(f"{candidate} against pretrained, best moves", decision["confirmation_best_moves"]),
        (f"{candidate} against pretrained, sampled at T = 1", decision["confirmation_sampled_moves"]["text"]),
    ]
    if decision["previous_champion"] is not None:
        rows += _match_rows(f"{candidate} against the previous champion, best moves", decision["previous_champion"])
    for name, match in facts["baseline"]["matches"].items():
        rows += _match_rows(f"pretrained against {name}, best moves", match)
    return rows


def _match_rows(what: str, match: Mapping[str, Any]) -> list[tuple[str, str]]:
    rows = [(what, match["text"])]
    if "adjudicated" in match:
        rows.append((f"the same, undecided games by depth {match['adjudicated']['depth']}", match["adjudicated"]["text"]))
    return rows


def strength_lines(decision: Mapping[str, Any]) -> list[str]:
    """Return sentences on the candidate's strength against its own start and against everybody else, and a third if the two disagree."""
    claim, gain, disagreement = decision["claims"][0], decision["ladder_gain"], decision["disagreement"]
    found = "better" if claim["is_shown"] else "no improvement shown"
    lines = [
        f"Against its own start: {found}, {claim['text']}, {decision['scored_by']}.",
        f"Against everybody else (ladder rating less its start's): {gain['text']}.",
    ]
    return [*lines, f"{disagreement[0].upper()}{disagreement[1:]}."] if disagreement else lines


def decision_rows(decision: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the decision's trace: what was done or asked, and what came out."""
    rows = [
        (f"halving, round {entry['round'] + 1}: step {entry['candidate']:,}", f"{entry['text']}; {'stays' if entry['kept'] else 'leaves'}")
        for entry in decision["screening"]
    ]
    rows += [(f"claim: {claim['name']}", f"{claim['text']}; {_shown(claim)}") for claim in decision["claims"]]
    rows.append((f"claim: {AGAINST_OTHERS}", decision["ladder_gain"]["text"] + ("; BLOCKS" if _is_worse_on_ladder(decision) else "")))
    rows += [(f"beside, decides nothing: {claim['name']}", f"{claim['text']}; {_shown(claim)}") for claim in decision["beside"]]
    for change in decision["phases"]:
        found = change["change"]
        text = f"{found['value']:+.4f} [{found['low']:+.4f}, {found['high']:+.4f}], {change['num_boards']} boards"
        rows.append((f"held-out regret, {change['phase']}, less the pretrained policy's", text + ("; BLOCKS" if change["blocks"] else "")))
    return rows


def _is_worse_on_ladder(decision: Mapping[str, Any]) -> bool:
    return bool(decision["ladder_gain"]["finding"] == LadderFinding.WORSE)


def _shown(claim: Mapping[str, Any]) -> str:
    return f"{'shown' if claim['is_shown'] else 'not shown'}, adjusted p {claim['adjusted_p']:.4f}"


def ladder_rows(facts: Mapping[str, Any]) -> list[tuple[str, str, str, str]]:
    """Return the ladder from its highest rung down, with who was placed on it: who, Elo, gap to the rung below, scores against the rung."""
    placed = placed_together(facts["select"])
    against: dict[str, list[str]] = {}
    for who, place in placed.items():
        for part in place["games"]:
            against.setdefault(part["rung"], []).append(f"{who} {part['score']:.3f}")
    rows = [
        (
            rung["rating"],
            rung["name"],
            _elo(rung["rating"], rung["low"], rung["high"]),
            _elo(rung["gap"], rung["gap_low"], rung["gap_high"]) if "gap" in rung else "",
            ", ".join(against.get(rung["name"], [])),
        )
        for rung in facts["calibrate"]["rungs"]
    ]
    rows += [
        (place["rating"], f"**{who}**", f"**{_elo(place['rating'], place['low_of_all'], place['high_of_all'])}**", "", "")
        for who, place in placed.items()
    ]
    return [row[1:] for row in sorted(rows, key=lambda row: -row[0])]


def placed_together(decision: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Return the name of the start and of the candidate -> its place on the ladder, by the same rungs and openings."""
    return {"pretrained": decision["ladder_initial"], f"step {decision['candidate_step']:,}": decision["ladder"]}


def _elo(middle: float, low: float, high: float) -> str:
    return f"{middle:+,.0f} [{low:+,.0f}, {high:+,.0f}]" if (low, high) != (middle, middle) else f"{middle:.0f}"


def phase_rows(facts: Mapping[str, Any]) -> list[tuple[str, int, int]]:
    """Return for each phase the positions met in the source and the boards kept."""
    boards = facts["join_boards"]
    return [(phase.value, boards["natural_phases"][phase], boards["phases"][phase]) for phase in PHASES]


def _page(facts: Mapping[str, Any]) -> str:
    decision, training = facts["select"], facts["finetune"]
    words = _WORDS[reported_kind(facts)]
    comparison = "\n".join(f"| {what} | {score} |" for what, score in comparison_rows(facts))
    phases = "\n".join(f"| {phase} | {met:,} | {kept:,} |" for phase, met, kept in phase_rows(facts))
    ladder = "\n".join(f"| {' | '.join(row)} |" for row in ladder_rows(facts))
    confirmed = decision["confirmation_best_moves"]
    ends = ", ".join(f"{count} {end}" for end, count in confirmed["ends"].items() if count)
    reasons = "\n".join(f"- {reason}." for reason in decision["reasons"])
    trace = "\n".join(f"| {what} | {found} |" for what, found in decision_rows(decision))
    strength = "\n".join(f"- {line}" for line in strength_lines(decision))
    return f"""# Verdict: {decision["verdict"]}

{strength}

Scores are of fresh paired games, with 95 % intervals; only games played after the candidate was chosen are reported.

| match | score |
| --- | --- |
{comparison}

Confirmation: {confirmed["num_openings"]} distinct openings, each with both colours: the sample size of players who always play the same.
For the claims games count as {decision["scored_by"]}. They ended by: {ends}.

## Decision: {_outcome(decision)}

{reasons}

| step of the decision | found |
| --- | --- |
{trace}

## How it got there

- {words.pretraining(facts["pretrain"])}
- GRPO went from step {training["first_step"]:,} to {training["last_step"]:,} and ended by `{training["reason"]}`{_because(training)};
  entropy at T = 1 was {_nats(training["mean_entropy_at_end"])}{words.entropy_of} then (mean of the last steps).
- {words.control(training["control"])}
- Champion: {"the pretrained policy" if decision["champion_step"] == 0 else f"step {decision['champion_step']:,}"}.
  Peak, to resume from: step {decision["peak_step"]:,}.

## Ladder

{facts["calibrate"]["note"]} Engine: {html.escape(facts["calibrate"]["engine"])}.

| player | Elo | above the next lower rung | scores against it |
| --- | --- | --- | --- |
{ladder}

Best moves, the rungs' ratings taken as exact, both on the same openings: pretrained {decision["ladder_initial"]["text"]};
step {decision["candidate_step"]:,} {decision["ladder"]["text"]}.

## Boards

| phase | met in the source | kept |
| --- | --- | --- |
{phases}
"""


def reported_kind(facts: Mapping[str, Any]) -> str:
    """Return the kind of policy that the reports of a run are of."""
    return LANGUAGE if "parse_rates" in facts["pretrain"] else NETWORK


def _imitation(found: Mapping[str, Any]) -> str:
    ended = "the validation loss had stopped falling" if found["has_converged"] else "max_steps was reached: NOT converged"
    return f"""Imitation took {found["num_steps"]:,} steps and ended because {ended}: validation loss {found["validation_loss"]:.3f} nats,
  top-1 {found["top1"]:.3f}, top-5 {found["top5"]:.3f}, entropy {found["entropy"]:.2f} nats."""


def _cloning(found: Mapping[str, Any]) -> str:
    rates = ", ".join(
        f"{words} task {rate['rate']:.3f} [{rate['low']:.3f}, {rate['high']:.3f}]"
        for task, words in TASKS.items()
        if (rate := found["parse_rates"].get(task))
    )
    model = f"`{html.escape(found['model'])}`" + (f" at commit `{found['commit'][:12]}`" if found["commit"] else "")
    loss = f": validation loss {found['clone_validation_loss']:.3f} nats a token" if found["num_steps"] else ""
    return f"""Language model {model}, {found["num_parameters"]:,} parameters; cloning took {found["num_steps"]:,} steps{loss}.
  Answers drawn at T = 1 that could be read: {rates}."""


def _control(found: Mapping[str, float]) -> str:
    return f"""The entropy controller stood at a bound in {found["control/entropy_saturated"]:.0%} of the steps and changed nothing in
  {found["control/entropy_idle"]:.0%}; recoveries from critical entropy: {found["control/recoveries"]:.0f}."""


def _recoveries(found: Mapping[str, float]) -> str:
    return f"Recoveries from critical entropy: {found['control/recoveries']:.0f}."


class _Words(NamedTuple):
    pretraining: Callable[[Mapping[str, Any]], str]
    entropy_of: str
    control: Callable[[Mapping[str, float]], str]


_WORDS: Final[Mapping[str, _Words]] = {
    NETWORK: _Words(_imitation, "", _control),
    LANGUAGE: _Words(_cloning, " an answer", _recoveries),  # No controller moves its coefficients.
}


def _outcome(decision: Mapping[str, Any]) -> str:
    if not decision["promoted"]:
        return "the pretrained policy stays"
    step = f"step {decision['candidate_step']:,}"
    if decision["previous_champion"] is None or decision["replaces_previous"]:
        return f"{step} is champion"
    return f"{step} is this run's champion; the registry's champion stays, for {step} was not shown to be better than it"


def _because(training: Mapping[str, Any]) -> str:
    return f" ({training['message']})" if training["message"] else ""


def _nats(entropy: float | None) -> str:
    return "not known (a rollback had just been made)" if entropy is None else f"{entropy:.2f} nats"
