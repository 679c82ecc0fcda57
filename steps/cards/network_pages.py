"""Metaflow cards of a network's training: behaviour cloning and GRPO; for a language model see `language_pages`."""

from collections.abc import Sequence
from typing import Final

from grpo.board.phases import PHASES
from grpo.settings.metrics import TERMS
from steps.cards.charts import COLOURS, share_chart
from steps.cards.html import CardPart, badge, block, heading, number_text
from steps.cards.metric_tables import critical_level, metric_figure, metric_lines, numbers
from steps.cards.state import KindPages, Seen

_HEALTHY: Final = "#2f9e6e"
_START: Final = "#7d8794"
_TERM_NAMES: Final = {
    "policy": "policy (reward)",
    "entropy": "entropy bonus",
    "reference_kl": "KL to the reference",
    "recovery_kl": "recovery KL",
}


def _pretrain_page(seen: Seen) -> list[CardPart]:
    """Return the card of `pretrain`: losses, accuracy and convergence of behaviour cloning."""
    report = seen.report()
    ended = ""
    if report:
        best = f"best validation loss at step {report['best_step']:,}: {number_text(report['validation_loss'])} nats"
        if report["has_converged"]:
            ended = f"<p>{badge('converged', 'good')} after {report['num_steps']:,} steps; {best}.</p>"
        else:
            ended = f"<p>{badge('NOT converged', 'warning')} stopped by pretrain.max_steps at {report['num_steps']:,}; {best}.</p>"
    losses = {"imitation/train_loss": "training", "imitation/validation_loss": "validation"}
    accuracy = {"imitation/top1": "played move is the likeliest", "imitation/top5": "among the five likeliest"}
    return [
        block(heading("Behaviour cloning of the moves played", 1), seen.state(), ended),
        *metric_figure("loss", seen.records, losses, note="Training ends when the validation loss stops falling."),
        *metric_figure("accuracy on validation boards", seen.records, accuracy),
        *metric_figure("entropy at T = 1", seen.records, {"imitation/entropy": "mean entropy"}, note="GRPO starts from this entropy."),
    ]


def _training_figures(seen: Seen, marks: Sequence[float]) -> list[CardPart]:
    config, records = seen.settings["grpo"], seen.records
    phases = {f"grpo/entropy/{phase}": phase.value for phase in PHASES}
    healthy = {"healthy (floor)": (float(config["recovery"]["healthy_entropy"]), _HEALTHY)}
    fractions = metric_lines(records, {f"grpo/logit_share/{term}": _TERM_NAMES[term] for term in TERMS})
    return [
        *metric_figure(
            "reward gain over the reference",
            records,
            {"grpo/reward_gain": "policy less reference, same states"},
            levels={"no gain": (0.0, _START)},
            note="Mean reward less the reference's on the same training states: without lower held-out regret it is not strength.",
        ),
        *metric_figure(
            "held-out regret, stronger search",
            records,
            {"heldout/regret_best": "best moves", "heldout/regret_sampled": "sampled at T = 1"},
            note="Lower is better. Games are played with best moves.",
        ),
        *metric_figure(
            "entropy by phase at T = 1",
            records,
            {"grpo/entropy": "all phases", **phases, "grpo/log_num_legal": "ln(legal moves): the maximum"},
            levels=healthy | critical_level(config),
            dashed=["grpo/log_num_legal"],
            marks=marks,
            note="Below the critical line for a while, GRPO recovers or stops. Above ln(legal moves) is impossible.",
        ),
        *metric_figure(
            "KL to the reference",
            records,
            {"grpo/kl_reference": "KL(policy || reference)", "grpo/kl_from_reference": "KL(reference || policy)"},
            note="0 at the first step; a plateau with flat reward is the KL trap.",
        ),
        *metric_figure(
            "clipped moves",
            records,
            {"grpo/clip_fraction": "either clip", "grpo/clip_low_fraction": "lower clip", "grpo/clip_high_fraction": "upper clip"},
            note="A large fraction means that steps are too large for their rollout.",
        ),
        share_chart("gradient budget (fractions of the logit gradient)", fractions),
        numbers(fractions, unit="fraction", note="If the reward's fraction is tiny, training follows the regularisers."),
        *metric_figure(
            "zero-variance groups",
            records,
            {"grpo/zero_variance_groups": "all rewards of a group equal"},
            note="Their advantage is zero.",
        ),
        *metric_figure(
            "entropy and KL coefficients",
            records,
            {
                "control/entropy_coefficient": "entropy",
                "control/kl_coefficient": "KL to the reference",
                "control/recovery_coefficient": "recovery KL",
            },
        ),
    ]


NETWORK_PAGES: Final = KindPages(pretrain=_pretrain_page, training_figures=_training_figures)
assert len(_TERM_NAMES) == len(TERMS) <= len(COLOURS), "each term of the objective has a name and a colour of its own"
