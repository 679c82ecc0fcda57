"""Whether GRPO can learn anything here, asked before the first update: of the policy, its reference, some states and the settings.

Legend: B states.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from grpo.base.errors import PlainError
from grpo.board.phases import PHASES
from grpo.diagnosis.conditions import cancels, dominates, is_certain
from grpo.learning.measurements import InnerStep, RolloutFacts
from grpo.learning.objective import budget
from grpo.metrics.table import TERM_PAIRS, TERMS
from grpo.settings.grpo import GrpoConfig

_MIN_SPREAD = 0.005
"""Win probability: where moves of a group differ by less, the engine's own error (about 0.05 at depth 2) is ten times the signal."""
_MAX_ZERO_VARIANCE_WARNED, _MAX_ZERO_VARIANCE = 0.5, 0.95
_NEARLY_UNIFORM = 0.95
_NEARLY_EMPTY = 1e-9


class Consequence(StrEnum):
    """What a finding means for the run."""

    FINE = "fine"
    WARNING = "warning"
    REFUSAL = "refusal"


@dataclass(frozen=True, kw_only=True, slots=True)
class LearnabilityFinding:
    """One thing that was looked at."""

    name: str
    severity: Consequence
    seen: str
    """The numbers."""
    advice: str
    """What it means and what to do; empty when all is well."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Learnability:
    """What was found before the first update, and the numbers it rests on."""

    findings: tuple[LearnabilityFinding, ...]
    metrics: Mapping[str, float]
    """Of the rollout and its objective, by the names of `metrics`, and `spread/PHASE`."""

    @property
    def severity(self) -> Consequence:
        """The worst of all findings."""
        found = {finding.severity for finding in self.findings}
        return next((worst for worst in (Consequence.REFUSAL, Consequence.WARNING) if worst in found), Consequence.FINE)

    def facts(self) -> dict[str, Any]:
        """Return plain data for a report."""
        return {
            "severity": self.severity.value,
            "findings": [asdict(finding) for finding in self.findings],
            "metrics": dict(self.metrics),
        }


class NotLearnableError(PlainError, RuntimeError):
    """GRPO would learn nothing here, or something else than it says; the message names each reason."""


def assess_learnability(facts: RolloutFacts, step: InnerStep, config: GrpoConfig, *, is_at_reference: bool) -> Learnability:
    """Return the findings on the first rollout and the objective on all of it, before any update.

    Args:
        facts: what the rollout's metrics are.
        step: the objective on the whole rollout, with both gradient budgets.
        config: critical entropy and alarms.
        is_at_reference: whether the policy is the reference as yet, so that both divergences must be 0.
    """
    metrics = {name: float(value) for name, value in facts.metrics.items()}
    findings = [
        _on_policy(step),
        _reference(step, is_at_reference=is_at_reference),
        *_spread(facts),
        _zero_variance(metrics["grpo/silent_groups"]),
        _entropy(metrics, config),
        *_budget(step, config),
    ]
    return Learnability(findings=tuple(findings), metrics=metrics)


def refuse_unlearnable(found: Learnability) -> None:
    """Raise NotLearnableError with all reasons when there is one."""
    reasons = [
        f"  {finding.name}: {finding.seen}. {finding.advice}" for finding in found.findings if finding.severity == Consequence.REFUSAL
    ]
    if reasons:
        raise NotLearnableError("GRPO is refused before its first update:\n" + "\n".join(reasons))


def finding(name: str, seen: str, *cases: tuple[bool, Consequence, str]) -> LearnabilityFinding:
    """Return the finding of the first case that holds, each with its severity and advice; or a good one."""
    for holds, severity, advice in cases:
        if holds:
            return LearnabilityFinding(name=name, severity=severity, seen=seen, advice=advice)
    return LearnabilityFinding(name=name, severity=Consequence.FINE, seen=seen, advice="")


def _on_policy(step: InnerStep) -> LearnabilityFinding:
    clipped = step.mean("clip_low") + step.mean("clip_high")
    # Trained on, this is asserted at every rollout; here it is shown.
    return finding(
        "ratio and KL(old) at step 0",
        f"ratios {step.ratio_min:.6f} to {step.ratio_max:.6f}, clipped {clipped:.4f}, KL(old || new) {step.kl_old:.2e} nats",
        (
            not (step.ratio_min > 0.95 and step.ratio_max < 1.05 and clipped == 0 and abs(step.kl_old) < 1e-3),
            Consequence.REFUSAL,
            "Sampling and loss score differently with identical weights: another temperature, mask, precision or mode",
        ),
    )


def _reference(step: InnerStep, *, is_at_reference: bool) -> LearnabilityFinding:
    return finding(
        "distance to the reference",
        f"KL(policy || reference) {step.mean('kl_reference'):.3g} nats, KL(reference || policy) {step.mean('kl_from_reference'):.3g} nats",
        (
            not step.mean("kl_reference") >= -1e-6,
            Consequence.REFUSAL,
            "A divergence is never negative: the two are not distributions over the same moves",
        ),
        (
            is_at_reference and step.mean("kl_reference") > 1e-3,
            Consequence.REFUSAL,
            "The run begins at its reference, so that both must be 0: another policy was loaded, or the two score differently",
        ),
        (
            step.mean("kl_reference") > 5,
            Consequence.WARNING,
            "The policy is far from its anchor before training: a KL term will drag it back; is this the right reference?",
        ),
    )


def _spread(facts: RolloutFacts) -> list[LearnabilityFinding]:
    found = []
    for phase in PHASES:
        name = f"grpo/group_std/{phase}"
        if name in facts.metrics:
            spread = facts.metrics[name]
            found.append(
                finding(
                    f"reward spread, {phase}",
                    f"mean standard deviation within a group {spread:.4f}",
                    (
                        spread < _MIN_SPREAD,
                        Consequence.WARNING,
                        f"Moves are worth the same here to within {_MIN_SPREAD}: noise of the engine will be learnt. Another"
                        " values.transform or a larger grpo.temperature tells them apart",
                    ),
                )
            )
    return found


def _zero_variance(fraction: float) -> LearnabilityFinding:
    return finding(
        "silent groups",
        f"{fraction:.1%} of the groups have equal rewards",
        (
            fraction > _MAX_ZERO_VARIANCE,
            Consequence.REFUSAL,
            "There is nothing to learn from: the policy always plays the same move (raise grpo.temperature), or all moves are worth the"
            " same (other boards, another values.transform)",
        ),
        (
            fraction > _MAX_ZERO_VARIANCE_WARNED,
            Consequence.WARNING,
            "Most groups teach nothing: a larger grpo.group_size or temperature makes them differ",
        ),
    )


def _entropy(metrics: Mapping[str, float], config: GrpoConfig) -> LearnabilityFinding:
    normalised = metrics["grpo/normalised_entropy"]
    by_phase = ", ".join(f"{phase} {metrics[f'grpo/entropy/{phase}']:.2f}" for phase in PHASES if f"grpo/entropy/{phase}" in metrics)
    measured = metrics[f"grpo/{config.critical_measure}"]
    return finding(
        "entropy at T = 1",
        f"{metrics['grpo/entropy']:.2f} nats ({by_phase}), {normalised:.2f} of ln(legal moves),"
        f" {metrics['grpo/effective_moves']:.1f} effective moves",
        (
            metrics["grpo/entropy"] > metrics["grpo/log_num_legal"] + 1e-4,
            Consequence.REFUSAL,
            "Entropy above ln(legal moves) is impossible: whatever was measured, it is no entropy",
        ),
        (
            measured < config.critical_entropy,
            Consequence.REFUSAL,
            f"It is critical already (grpo.critical_entropy = {config.critical_entropy:g}): start from a policy that has a choice left",
        ),
        (
            is_certain(normalised, config.alarms),
            Consequence.WARNING,
            "The policy has nearly made up its mind before it learns: groups will agree, and little is learnt",
        ),
        (
            normalised > _NEARLY_UNIFORM,
            Consequence.WARNING,
            "The policy is next to uniform, that is, it knows nothing yet: pretrain it. GRPO does learn from such values, but from scratch",
        ),
    )


def _budget(step: InnerStep, config: GrpoConfig) -> list[LearnabilityFinding]:
    alarms, found = config.alarms, []
    for space, products in (("logits", step.products), ("parameters", step.parameter_budget)):
        if products is None:
            continue
        norms, fractions, cosines = budget(products)
        seen = ", ".join(f"{term} {norms[term]:.2e} ({fractions[term]:.0%})" for term in TERMS if norms[term])
        dominating = [term for term in TERMS if term != "policy" and dominates(fractions[term], alarms)]
        cancelling = [
            f"{one} and {other} (cosine {cosines[one, other]:.3f})"
            for one, other in TERM_PAIRS
            if cancels(cosines[one, other], norms[one], norms[other], alarms)
        ]
        found.append(
            finding(
                f"gradient budget, {space}",
                seen or "no gradient",
                (
                    norms["policy"] < _NEARLY_EMPTY,
                    Consequence.WARNING,
                    "The policy term has no gradient: nothing can be learnt from rewards",
                ),
                (bool(cancelling), Consequence.WARNING, f"{', '.join(cancelling)} cancel: together they do nothing; drop one"),
                (
                    bool(dominating),
                    Consequence.WARNING,
                    f"{', '.join(dominating)} has nearly all of the gradient, whatever its value in the loss: lower its coefficient",
                ),
            )
        )
    return found
