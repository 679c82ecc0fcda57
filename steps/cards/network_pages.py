"""Cards of a network's two trainings: imitation, and GRPO; for a language model see `language_pages`."""

from collections.abc import Sequence
from typing import Final

from grpo.board.phases import PHASES
from grpo.metrics.table import TERMS, Record
from steps.cards.charts import ALARM, COLOURS, share_chart
from steps.cards.html import CardPart, badge, block, heading, number_text
from steps.cards.metric_tables import metric_figure, metric_lines, numbers
from steps.cards.state import KindPages, Seen

_HEALTHY: Final = "#2f9e6e"
_TERM_NAMES: Final = {
    "policy": "policy (reward)",
    "entropy": "entropy bonus",
    "anchor_kl": "KL to the reference",
    "recovery_kl": "recovery KL",
}
_LATEST: Final = {
    "grpo/reward_mean": "mean reward",
    "grpo/entropy": "entropy at T = 1",
    "grpo/log_num_legal": "ln(legal moves)",
    "grpo/kl_reference": "KL to the reference",
    "grpo/clip_fraction": "clipped",
    "grpo/silent_groups": "silent groups",
    "heldout/regret_best": "held-out regret, best moves",
    "heldout/regret_sampled": "held-out regret, sampled",
    "control/entropy_coefficient": "entropy coefficient",
    "control/temperature": "temperature",
    "control/learning_rate": "learning rate",
    "time/transitions_per_second": "speed",
}


def _pretrain_page(seen: Seen) -> list[CardPart]:
    """Return the card of `pretrain`: losses, hits, and whether imitation ended because it had converged."""
    report = seen.report()
    ended = ""
    if report:
        best = f"best look at step {report['best_step']:,}: validation loss {number_text(report['validation_loss'])} nats"
        if report["has_converged"]:
            ended = f"<p>{badge('converged', 'good')} after {report['num_steps']:,} steps; {best}.</p>"
        else:
            ended = f"<p>{badge('NOT converged', 'warning')} pretrain.max_steps ended it at {report['num_steps']:,}; {best}.</p>"
    losses = {"imitation/train_loss": "training", "imitation/validation_loss": "validation"}
    hits = {"imitation/top1": "likeliest move is the one played", "imitation/top5": "among the five likeliest"}
    return [
        block(heading("Imitation of the moves played", 1), seen.state(), ended),
        *metric_figure("loss", seen.records, losses, note="It ends when the validation loss has stopped falling."),
        *metric_figure("hits on validation boards", seen.records, hits),
        *metric_figure("entropy at T = 1", seen.records, {"imitation/entropy": "mean entropy"}, note="What GRPO will have to spend."),
        *metric_figure("perplexity", seen.records, {"imitation/perplexity": "equal moves it seems to guess among"}),
    ]


def _training_figures(seen: Seen, marks: Sequence[float]) -> list[CardPart]:
    config, records = seen.settings["grpo"], seen.records
    phases = {f"grpo/entropy/{phase}": phase.value for phase in PHASES}
    levels = {"healthy (floor)": (float(config["recovery"]["healthy_entropy"]), _HEALTHY)}
    if config["critical_measure"] == "entropy" and config["critical_entropy"]:
        levels["critical"] = (float(config["critical_entropy"]), ALARM)
    normalised_levels = (
        {"critical": (float(config["critical_entropy"]), ALARM)} if config["critical_measure"] == "normalised_entropy" else {}
    )
    shares = metric_lines(records, {f"grpo/logit_share/{term}": _TERM_NAMES[term] for term in TERMS})
    return [
        *metric_figure(
            "entropy by phase at T = 1",
            records,
            {"grpo/entropy": "all phases", **phases, "grpo/log_num_legal": "ln(legal moves): the most there can be"},
            levels=levels,
            dashed=["grpo/log_num_legal"],
            marks=marks,
            note="Below the critical line for a while it recovers or stops; thin upright lines are events. Above ln(legal) is impossible.",
        ),
        *metric_figure(
            "normalised entropy",
            records,
            {"grpo/normalised_entropy": "entropy / ln(legal moves)"},
            levels=normalised_levels,
            note="Comparable between phases; 1 is a policy that guesses.",
        ),
        *metric_figure(
            "mean reward",
            records,
            {"grpo/reward_mean": "sampled moves, training states"},
            note="Levels differ between states: a rise without less held-out regret is no strength.",
        ),
        *metric_figure(
            "held-out regret, stronger search",
            records,
            {"heldout/regret_best": "best moves", "heldout/regret_sampled": "sampled at T = 1"},
            note="Lower is better. Best moves is what games are played with.",
        ),
        *metric_figure(
            "KL to the reference",
            records,
            {"grpo/kl_reference": "KL(policy || reference)", "grpo/kl_from_reference": "KL(reference || policy)"},
            note="0 at the first step; a plateau while reward is flat too is the KL trap.",
        ),
        *metric_figure(
            "clipped moves",
            records,
            {"grpo/clip_fraction": "either clip", "grpo/clip_low_fraction": "lower clip", "grpo/clip_high_fraction": "upper clip"},
            note="Much of it clipped: steps too large for the rollout they rest on.",
        ),
        share_chart("gradient budget (shares of the logit gradient)", shares),
        numbers(shares, unit="share", note="Where reward has hardly a share, regularisers are what is being learnt."),
        *metric_figure(
            "silent groups",
            records,
            {"grpo/silent_groups": "all rewards of a group equal"},
            note="They teach nothing.",
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
        *metric_figure(
            "controllers: saturated or idle so far",
            records,
            {
                "control/entropy_saturated": "entropy, at a bound",
                "control/entropy_idle": "entropy, changing nothing",
                "control/kl_saturated": "KL, at a bound",
                "control/kl_idle": "KL, changing nothing",
            },
            note="A controller at its bound is a constant; one that changes nothing is a dead monitor.",
        ),
        *metric_figure(
            "seconds of a step",
            records,
            {f"time/{part}": part for part in ("states", "rollout", "update", "other")},
            note="While it trains: times are no part of the stored history.",
        ),
    ]


def _report_figures(records: Sequence[Record]) -> list[CardPart]:
    return [
        *metric_figure(
            "entropy at T = 1",
            records,
            {
                "grpo/entropy": "all phases",
                **{f"grpo/entropy/{phase}": phase.value for phase in PHASES},
                "grpo/log_num_legal": "ln(legal moves)",
            },
            dashed=["grpo/log_num_legal"],
        ),
        *metric_figure("mean reward", records, {"grpo/reward_mean": "sampled moves, training states"}),
        *metric_figure("KL to the reference", records, {"grpo/kl_reference": "KL(policy || reference)"}),
    ]


NETWORK_PAGES: Final = KindPages(
    pretrain=_pretrain_page, training_figures=_training_figures, latest=_LATEST, report_figures=_report_figures
)
assert len(_TERM_NAMES) == len(TERMS) <= len(COLOURS), "each term of the objective has a name and a colour of its own"
