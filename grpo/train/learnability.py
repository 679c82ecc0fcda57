"""Whether GRPO can learn anything here, asked before the first update: of the policy, its reference, some states and the settings."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any, Final

from grpo.base.errors import PlainError
from grpo.board.phases import PHASES
from grpo.diagnosis.conditions import have_zero_advantage, is_certain
from grpo.settings.grpo import GrpoConfig
from grpo.train.measurements import InnerStep

_MIN_SPREAD: Final = 0.005
"""Win probability: where moves of a group differ by less, the engine's own error (about 0.05 at depth 2) is ten times the signal."""
_MAX_ZERO_VARIANCE: Final = 0.5
_NEARLY_UNIFORM: Final = 0.95
_MAX_FIRST_KL: Final = 1e-3
FAR: Final = 5.0
"""Nats of KL(policy || reference) before training, above which the anchor is too far."""


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
    """Of the rollout, by the names of `metrics`."""

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


def assess_learnability(metrics: Mapping[str, float], step: InnerStep, config: GrpoConfig, *, is_at_reference: bool) -> Learnability:
    """Return the findings on the first rollout and the objective on all of it, before any update.

    Args:
        metrics: the rollout's.
        step: the objective on the whole rollout.
        config: critical entropy.
        is_at_reference: whether the policy is the reference as yet, so that the divergence must be 0.
    """
    findings = (
        _reference(step.mean("kl_reference"), is_at_reference=is_at_reference),
        *_spread(metrics),
        zero_variance(metrics["grpo/zero_variance_groups"]),
        _entropy(metrics, config),
    )
    return Learnability(findings=findings, metrics=metrics)


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


def _reference(kl: float, *, is_at_reference: bool) -> LearnabilityFinding:
    return finding(
        "distance to the reference",
        f"KL(policy || reference) {kl:.3g} nats",
        (
            is_at_reference and not kl <= _MAX_FIRST_KL,
            Consequence.REFUSAL,
            "The run begins at its reference, so that it must be 0: another policy was loaded, or the two score differently",
        ),
        (
            kl > FAR,
            Consequence.WARNING,
            "The policy is far from its anchor before training: a KL term will drag it back; is this the right reference?",
        ),
    )


def _spread(metrics: Mapping[str, float]) -> list[LearnabilityFinding]:
    found = {phase: metrics[name] for phase in PHASES if (name := f"grpo/group_std/{phase}") in metrics}
    return [
        finding(
            f"reward spread, {phase}",
            f"mean standard deviation within a group {spread:.4f}",
            (
                spread < _MIN_SPREAD,
                Consequence.WARNING,
                f"Moves are worth the same here to within {_MIN_SPREAD}: noise of the engine will be learnt. A larger grpo.temperature"
                " tells them apart",
            ),
        )
        for phase, spread in found.items()
    ]


def zero_variance(fraction: float) -> LearnabilityFinding:
    """Return the finding on the fraction of groups whose rewards are equal."""
    return finding(
        "silent groups",
        f"{fraction:.1%} of the groups have equal rewards",
        (
            have_zero_advantage(fraction),
            Consequence.REFUSAL,
            "There is nothing to learn from: the policy always does the same (raise grpo.temperature), or all that it does is worth the"
            " same (other boards)",
        ),
        (
            fraction > _MAX_ZERO_VARIANCE,
            Consequence.WARNING,
            "Most groups teach nothing: a larger grpo.group_size or temperature makes them differ",
        ),
    )


def _entropy(metrics: Mapping[str, float], config: GrpoConfig) -> LearnabilityFinding:
    entropy, normalised = metrics["grpo/entropy"], metrics["grpo/normalised_entropy"]
    return finding(
        "entropy at T = 1",
        f"{entropy:.2f} nats, {normalised:.2f} of ln(legal moves)",
        (
            entropy < config.critical_entropy,
            Consequence.REFUSAL,
            f"It is critical already (grpo.critical_entropy = {config.critical_entropy:g}): start from a policy that has a choice left",
        ),
        (
            is_certain(normalised),
            Consequence.WARNING,
            "The policy has nearly made up its mind before it learns: groups will agree, and little is learnt",
        ),
        (
            normalised > _NEARLY_UNIFORM,
            Consequence.WARNING,
            "The policy is next to uniform, that is, it knows nothing yet: pretrain it. GRPO does learn from such values, but from scratch",
        ),
    )
