"""The cards of `pretrain` (behaviour cloning) and `finetune` (GRPO with its controllers and diagnosis), of both kinds of policies."""

from collections.abc import Mapping
from typing import Any, Final

from grpo.board.phases import PHASES
from grpo.diagnosis.diagnose import diagnose
from grpo.diagnosis.history import History
from grpo.policy.files import LANGUAGE
from grpo.settings.metrics import FINDING, REWARD_PARTS, TASKS, TERMS
from grpo.train.control import HEALTHY_ENTROPY
from steps.cards.charts import ALARM, Figure
from steps.cards.page import CardPart, page_part
from steps.cards.state import Seen
from steps.pages.results import Training
from steps.run.names import ANSWERS, FINDINGS

_NUM_EVENTS: Final = 40
_HEALTHY: Final = "#2f9e6e"
_START: Final = "#7d8794"


def pretrain_page(seen: Seen) -> list[CardPart]:
    """Return the card of `pretrain`: losses, and how well the policy or the model's answers came out."""
    is_language = seen.kind == LANGUAGE
    head = page_part("pretrain", seen=seen, report=seen.report(), tasks=TASKS, is_language=is_language)
    records = seen.history()
    charts = [part for figure in (_CLONING if is_language else _IMITATION) for part in figure.parts(records)]
    return [head, *charts, *([_answers(seen)] if is_language else [])]


def finetune_page(seen: Seen) -> list[CardPart]:
    """Return the card of `finetune`, live while it trains or from the stored history."""
    report, records, is_language = seen.report(), seen.history(), seen.kind == LANGUAGE
    events = [(record.step, event) for record in records for event in record.events]
    ended = Training.model_validate(report).end if report else ""
    found = seen.report(FINDINGS)
    if not found and any(event.name == FINDING for _, event in events):  # There is no output yet.
        found = diagnose(History.of_records(records)).facts()
    head = page_part("finetune", seen=seen, ended=ended, findings=found.get("findings", []))
    figures = (_language_figures if is_language else _network_figures)(float(seen.settings["grpo"]["critical_entropy"]))
    marks = [record.step for record in records if record.events]
    charts = [part for figure in figures for part in figure.parts(records, marks)]
    tail = page_part("events", events=events[: -_NUM_EVENTS - 1 : -1], num_events=len(events))
    return [head, *charts, *([_answers(seen)] if is_language else []), tail]


def _answers(seen: Seen) -> CardPart:
    """Return some prompts with their answers and graded rewards."""
    return page_part("answers", prompts=seen.read(ANSWERS) or [], tasks=TASKS)


def _with_parts(name: str, parts: Mapping[str, Any] | tuple[Any, ...]) -> tuple[str, ...]:
    return name, *(f"{name}/{part}" for part in parts)


def _critical(entropy: float) -> dict[str, tuple[float, str]]:
    """Return the line of `grpo.critical_entropy`, unless the check is off."""
    return {"critical": (entropy, ALARM)} if entropy else {}


_IMITATION: Final = (
    Figure(
        title="loss",
        names=("imitation/train_loss", "imitation/validation_loss"),
        note="Training ends when the validation loss stops falling.",
    ),
    Figure(title="accuracy on validation boards", names=("imitation/top1", "imitation/top5")),
    Figure(title="entropy at T = 1", names=("imitation/entropy",), note="GRPO starts from this entropy."),
)
_CLONING: Final = (
    Figure(
        title="loss per answer token",
        names=("language/clone_loss", *_with_parts("language/clone_validation_loss", TASKS)),
        note="The weights with the best validation loss are saved.",
    ),
)
_REGRET: Final = Figure(
    title="held-out regret, stronger search",
    names=("heldout/regret_best", "heldout/regret_sampled"),
    note="Lower is better. Games are played with best moves; an answer without a legal move has the largest regret.",
)


def _network_figures(critical_entropy: float) -> tuple[Figure, ...]:
    return (
        Figure(
            title="reward gain over the reference",
            names=("grpo/reward_gain",),
            levels={"no gain": (0.0, _START)},
            note="Mean reward less the reference's on the same training states: without lower held-out regret it is not strength.",
        ),
        _REGRET,
        Figure(
            title="entropy by phase at T = 1",
            names=(*_with_parts("grpo/entropy", tuple(PHASES)), "grpo/log_num_legal"),
            levels={"healthy (floor)": (HEALTHY_ENTROPY, _HEALTHY), **_critical(critical_entropy)},
            dashed="grpo/log_num_legal",
            note="Below the critical line for a while, GRPO recovers or stops. Above ln(legal moves) is impossible.",
        ),
        Figure(
            title="KL to the reference",
            names=("grpo/kl_reference", "grpo/kl_from_reference"),
            note="0 at the first step; a plateau with flat reward is the KL trap.",
        ),
        Figure(
            title="clipped moves",
            names=("grpo/clip_fraction", "grpo/clip_low_fraction", "grpo/clip_high_fraction"),
            note="A large fraction means that steps are too large for their rollout.",
        ),
        Figure(
            title="gradient budget (fractions of the logit gradient)",
            names=_with_parts("grpo/logit_share", TERMS)[1:],
            is_share=True,
            note="If the reward's fraction (policy) is tiny, training follows the regularisers.",
        ),
        Figure(title="zero-variance groups", names=("grpo/zero_variance_groups",), note="Their advantage is zero."),
        Figure(
            title="entropy and KL coefficients",
            names=("control/entropy_coefficient", "control/kl_coefficient", "control/recovery_coefficient"),
        ),
    )


def _language_figures(critical_entropy: float) -> tuple[Figure, ...]:
    return (
        Figure(
            title="reward of an answer",
            names=(*_with_parts("language/reward_mean", TASKS), "language/reward_trained"),
            note="Prompts differ from step to step: a rise without lower held-out regret is not strength.",
        ),
        Figure(
            title="reward by part",
            names=_with_parts("language/reward", REWARD_PARTS)[1:],
            note="Structure and parsing reward the format only, not chess.",
        ),
        Figure(
            title="parse rate",
            names=_with_parts("language/parse_rate", TASKS),
            note="It must not fall: if the model forgets the format, stop the run or raise the KL coefficient.",
        ),
        Figure(
            title="entropy of an answer at T = 1",
            names=_with_parts("language/entropy", TASKS),
            levels=_critical(critical_entropy),
            note="Sum over an answer's tokens. Below the critical line for a while GRPO recovers or stops.",
        ),
        Figure(
            title="KL to the reference, per answer",
            names=(*_with_parts("language/kl_reference", TASKS), "language/kl_max"),
            note="0 at the first step, before any update; otherwise sampling and scoring differ.",
        ),
        _REGRET,
    )
