"""The cards of `pretrain` (behaviour cloning) and `finetune` (GRPO with its controllers and diagnosis), of both kinds of policies."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from grpo.board.phases import PHASES
from grpo.policy.files import LANGUAGE
from grpo.settings.metrics import REWARD_PARTS, TASKS, TERMS
from grpo.train.control import HEALTHY_ENTROPY
from steps.cards.charts import ALARM, Figure
from steps.cards.page import CardPart, page_part
from steps.cards.state import Seen
from steps.pages.results import Training
from steps.pages.templates import training_end
from steps.run.names import ANSWERS, FINDINGS

_NUM_EVENTS: Final = 40
_HEALTHY: Final = "#2f9e6e"
_START: Final = "#7d8794"
_TERM_NAMES: Final = dict(zip(TERMS, ("policy (reward)", "entropy bonus", "KL to the reference", "recovery KL"), strict=True))
_BY_TASK: Final = {task: f"{words} task" for task, words in TASKS.items()}

_IMITATION: Final = (
    Figure(
        title="loss",
        names={"imitation/train_loss": "training", "imitation/validation_loss": "validation"},
        note="Training ends when the validation loss stops falling.",
    ),
    Figure(
        title="accuracy on validation boards",
        names={"imitation/top1": "played move is the likeliest", "imitation/top5": "among the five likeliest"},
    ),
    Figure(title="entropy at T = 1", names={"imitation/entropy": "mean entropy"}, note="GRPO starts from this entropy."),
)
_CLONING: Final = (
    Figure(
        title="loss per answer token",
        names={
            "language/clone_loss": "training",
            "language/clone_validation_loss": "validation",
            **{f"language/clone_validation_loss/{task}": f"validation, {words}" for task, words in _BY_TASK.items()},
        },
        note="The weights with the best validation loss are saved.",
    ),
)


def pretrain_page(seen: Seen) -> list[CardPart]:
    """Return the card of `pretrain`: losses, and how well the policy or the model's answers came out."""
    is_language = seen.kind == LANGUAGE
    report = seen.report()
    # The JSON file has them in alphabetical order.
    rates = [(words, report["parse_rates"][task]) for task, words in TASKS.items() if task in report.get("parse_rates", ())]
    head = page_part("pretrain", seen=seen, report=report, rates=rates, is_language=is_language)
    charts = [part for figure in (_CLONING if is_language else _IMITATION) for part in figure.parts(seen.records)]
    return [head, *charts, *([_answers(seen)] if is_language else [])]


def finetune_page(seen: Seen) -> list[CardPart]:
    """Return the card of `finetune`, live while it trains or from the stored history."""
    report = seen.report()
    is_language = seen.kind == LANGUAGE
    events = [(record.step, event) for record in seen.records for event in record.events]
    head = page_part(
        "finetune",
        seen=seen,
        ended=training_end(Training.of(report)) if report else "",
        findings=seen.report(FINDINGS).get("findings", seen.findings),
    )
    marks = [record.step for record in seen.records if record.events]
    figures = _language_figures(seen.settings["grpo"]) if is_language else _network_figures(seen.settings["grpo"])
    charts = [part for figure in figures for part in figure.parts(seen.records, marks)]
    tail = page_part("events", events=events[: -_NUM_EVENTS - 1 : -1], num_events=len(events))
    return [head, *charts, *([_answers(seen)] if is_language else []), tail]


def _network_figures(config: Mapping[str, Any]) -> Iterable[Figure]:
    healthy = {"healthy (floor)": (HEALTHY_ENTROPY, _HEALTHY)}
    yield Figure(
        title="reward gain over the reference",
        names={"grpo/reward_gain": "policy less reference, same states"},
        levels={"no gain": (0.0, _START)},
        note="Mean reward less the reference's on the same training states: without lower held-out regret it is not strength.",
    )
    yield Figure(
        title="held-out regret, stronger search",
        names={"heldout/regret_best": "best moves", "heldout/regret_sampled": "sampled at T = 1"},
        note="Lower is better. Games are played with best moves.",
    )
    yield Figure(
        title="entropy by phase at T = 1",
        names={
            "grpo/entropy": "all phases",
            **{f"grpo/entropy/{phase}": phase.value for phase in PHASES},
            "grpo/log_num_legal": "ln(legal moves): the maximum",
        },
        levels=healthy | _critical(config),
        dashed=("grpo/log_num_legal",),
        has_marks=True,
        note="Below the critical line for a while, GRPO recovers or stops. Above ln(legal moves) is impossible.",
    )
    yield Figure(
        title="KL to the reference",
        names={"grpo/kl_reference": "KL(policy || reference)", "grpo/kl_from_reference": "KL(reference || policy)"},
        note="0 at the first step; a plateau with flat reward is the KL trap.",
    )
    yield Figure(
        title="clipped moves",
        names={"grpo/clip_fraction": "either clip", "grpo/clip_low_fraction": "lower clip", "grpo/clip_high_fraction": "upper clip"},
        note="A large fraction means that steps are too large for their rollout.",
    )
    yield Figure(
        title="gradient budget (fractions of the logit gradient)",
        names={f"grpo/logit_share/{term}": name for term, name in _TERM_NAMES.items()},
        is_share=True,
        note="If the reward's fraction is tiny, training follows the regularisers.",
    )
    yield Figure(
        title="zero-variance groups",
        names={"grpo/zero_variance_groups": "all rewards of a group equal"},
        note="Their advantage is zero.",
    )
    yield Figure(
        title="entropy and KL coefficients",
        names={
            "control/entropy_coefficient": "entropy",
            "control/kl_coefficient": "KL to the reference",
            "control/recovery_coefficient": "recovery KL",
        },
    )


def _language_figures(config: Mapping[str, Any]) -> Iterable[Figure]:
    yield Figure(
        title="reward of an answer",
        names={
            "language/reward_mean": "all parts at full weight",
            "language/reward_trained": "as trained, with warm-up",
            **{f"language/reward_mean/{task}": words for task, words in _BY_TASK.items()},
        },
        has_marks=True,
        note="Prompts differ from step to step: a rise without lower held-out regret is not strength.",
    )
    yield Figure(
        title="reward by part",
        names={f"language/reward/{part}": part.replace("_", " ") for part in REWARD_PARTS},
        note="Structure and parsing reward the format only, not chess.",
    )
    yield Figure(
        title="parse rate",
        names={"language/parse_rate": "all answers", **{f"language/parse_rate/{task}": words for task, words in _BY_TASK.items()}},
        note="It must not fall: if the model forgets the format, stop the run or raise the KL coefficient.",
    )
    yield Figure(
        title="entropy of an answer at T = 1",
        names={"language/entropy": "all answers", **{f"language/entropy/{task}": words for task, words in _BY_TASK.items()}},
        levels=_critical(config),
        has_marks=True,
        note="Sum over an answer's tokens. Below the critical line for a while GRPO recovers or stops.",
    )
    yield Figure(
        title="KL to the reference, per answer",
        names={
            "language/kl_reference": "mean",
            **{f"language/kl_reference/{task}": words for task, words in _BY_TASK.items()},
            "language/kl_max": "maximum",
        },
        note="0 at the first step, before any update; otherwise sampling and scoring differ.",
    )
    yield Figure(
        title="held-out regret, stronger search",
        names={"heldout/regret_best": "best answers", "heldout/regret_sampled": "sampled at T = 1"},
        note="Lower is better; an answer without a legal move has the largest regret.",
    )


def _critical(config: Mapping[str, Any]) -> dict[str, tuple[float, str]]:
    """Return the line of `grpo.critical_entropy`, unless the check is off."""
    return {"critical": (float(config["critical_entropy"]), ALARM)} if config["critical_entropy"] else {}


def _answers(seen: Seen) -> CardPart:
    """Return some prompts with their answers and graded rewards."""
    prompts: Sequence[Mapping[str, Any]] = seen.listed(ANSWERS)
    return page_part("answers", prompts=prompts, tasks=TASKS)
