"""Runs all diagnosis rules over a run's history, after the run or during training."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from grpo.diagnosis import rules_entropy, rules_objective, rules_reward, rules_stability, rules_strength
from grpo.diagnosis.case import Case, DiagnosisRule
from grpo.diagnosis.findings import ENTRIES, HEALTHY, Finding, Severity
from grpo.diagnosis.given import Given, with_recorded
from grpo.diagnosis.history import History
from grpo.settings.metrics import Record

RULES: Final[Mapping[str, DiagnosisRule]] = {
    rule.__name__: rule
    for rule in (
        rules_objective.nan_steps,
        rules_reward.unlearned_language_model,
        rules_stability.diverging,
        rules_reward.lost_format,
        rules_entropy.impossible_entropy,
        rules_entropy.kl_trap,
        rules_entropy.entropy_collapse,
        rules_entropy.entropy_explosion,
        rules_reward.falling_reward,
        rules_strength.reward_hacking,
        rules_objective.scored_otherwise,
        rules_objective.temperature_mismatch,
        rules_objective.kl_at_step_zero,
        rules_objective.cancelling_terms,
        rules_objective.wrong_gradient,
        rules_objective.loss_budget,
        rules_objective.saturated_controller,
        rules_entropy.dead_monitor,
        rules_objective.high_clip_fraction,
        rules_objective.stale_policy,
        rules_reward.failed_values,
        rules_reward.silent_groups,
        rules_reward.group_agreement,
        rules_reward.flat_reward,
        rules_strength.unbelievable_peak,
        rules_strength.no_baseline,
        rules_strength.lost_strength,
        rules_strength.regret_without_strength,
    )
}
assert RULES.keys() | {HEALTHY} == ENTRIES.keys(), "a rule has no entry in the table of findings, or an entry no rule"

_WORST_FIRST: Final = (Severity.CRITICAL, Severity.WARNING, Severity.NOTE)
_STEPS_BETWEEN_LOOKS: Final = 10
_MIN_ROWS: Final = 20
_AT_ONCE: Final = frozenset({"unlearned_language_model", "scored_otherwise", "kl_at_step_zero"})
"""Findings that are checked at every row of a language model, because its steps take minutes."""


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """All findings, the worst first; `healthy` and notes if there is no warning or critical finding."""

    findings: tuple[Finding, ...]

    @property
    def is_healthy(self) -> bool:
        """Whether all findings are notes."""
        return all(finding.severity == Severity.NOTE for finding in self.findings)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the findings."""
        return tuple(finding.name for finding in self.findings)

    @property
    def tag(self) -> str:
        """Return the value of the run's tag: `healthy`, or the names of all findings that are not notes."""
        return HEALTHY if self.is_healthy else ", ".join(each.name for each in self.findings if each.severity != Severity.NOTE)

    def facts(self) -> dict[str, Any]:
        """Return the findings as plain data."""
        return {
            "verdict": HEALTHY if self.is_healthy else "findings",
            "findings": [finding.facts() for finding in self.findings],
        }

    def text(self) -> str:
        """Return the findings as text, with evidence, cause, remedy and page of each."""
        parts = []
        for finding in self.findings:
            if finding.name == HEALTHY:
                parts.append(f"{finding.name}: {finding.evidence[0]}. {finding.cause} {finding.remedy}")
                continue
            steps = "" if finding.first_step is None else f" (steps {finding.first_step:,} to {finding.last_step:,})"
            if finding.first_step is not None and finding.first_step == finding.last_step:
                steps = f" (step {finding.first_step:,})"
            evidence = "".join(f"\n  seen    {each}" for each in finding.evidence)
            parts.append(
                f"{finding.severity.value.upper():8}  {finding.name}{steps}: {ENTRIES[finding.name].meaning}{evidence}"
                f"\n  cause   {finding.cause}\n  remedy  {finding.remedy}\n  more    {finding.page}"
            )
        return "\n\n".join(parts)


def diagnose(history: History, settings: Mapping[str, Any] | None = None) -> Diagnosis:
    """Return the findings in a run's history.

    Args:
        history: The history of one run.
        settings: The run's settings (ours or another trainer's) as plain data. They make evidence and remedy more specific and do not
            change the verdict, but measurements in them (`final`, `ranges`) count as history.
    """
    case = Case(with_recorded(history, settings), Given(settings))
    found = [finding for rule in RULES.values() if (finding := rule(case)) is not None]
    found.sort(key=lambda finding: _WORST_FIRST.index(finding.severity))  # Stable: ties stay in the order of the rules.
    if all(finding.severity == Severity.NOTE for finding in found):
        found.insert(0, case.found(HEALTHY, (f"none of the {len(RULES)} checks found a problem in {history.num_rows:,} rows",)))
    return Diagnosis(tuple(found))


class Watch:
    """Runs the rules during training and returns each finding once, when it first appears."""

    def __init__(self, settings: Mapping[str, Any] | None = None) -> None:
        """Start with an empty history and the run's settings."""
        self._settings = settings
        self._history = History(is_ours=True)
        self._returned: set[str] = set()
        self._num_seen = 0

    def observe(self, record: Record) -> tuple[Finding, ...]:
        """Add the next record, and return the new findings.

        The rules run at every tenth record from the twentieth on, so that they cost little and a few outliers are not a finding, and at
        each record with NaN or infinity. For a language model, the rules of `_AT_ONCE` run at every record. Equal records give equal
        findings, so that a resumed run replays its journal.
        """
        num_bad = len(self._history.not_finite)
        self._history.add(record)
        self._num_seen += 1
        is_bad = len(self._history.not_finite) > num_bad
        if is_bad or (self._num_seen >= _MIN_ROWS and self._num_seen % _STEPS_BETWEEN_LOOKS == 0):
            return self._not_returned(self.diagnosis())
        if self._history.is_of_language_model:
            return self._not_returned(Diagnosis(tuple(each for each in self.diagnosis().findings if each.name in _AT_ONCE)))
        return ()

    def diagnosis(self) -> Diagnosis:
        """Return the diagnosis of all records so far."""
        return diagnose(self._history, self._settings)

    def _not_returned(self, found: Diagnosis) -> tuple[Finding, ...]:
        new = tuple(each for each in found.findings if each.severity != Severity.NOTE and each.name not in self._returned)
        self._returned |= {each.name for each in new}
        return new
