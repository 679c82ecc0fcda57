"""All rules over one history: at its end, or while it grows."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from grpo.diagnosis import rules_entropy, rules_objective, rules_reward, rules_strength
from grpo.diagnosis.case import Case, DiagnosisRule
from grpo.diagnosis.findings import ENTRIES, HEALTHY, Finding, Severity
from grpo.diagnosis.given import Given, with_recorded
from grpo.diagnosis.history import History
from grpo.metrics.table import Record

RULES: Final[Mapping[str, DiagnosisRule]] = {
    rule.__name__: rule
    for rule in (
        rules_objective.nan_steps,
        rules_reward.unlearned_language_model,
        rules_reward.lost_format,
        rules_entropy.impossible_entropy,
        rules_entropy.kl_trap,
        rules_entropy.entropy_collapse,
        rules_objective.scored_otherwise,
        rules_objective.temperature_mismatch,
        rules_objective.kl_at_step_zero,
        rules_objective.cancelling_terms,
        rules_objective.wrong_gradient,
        rules_objective.exploding_advantages,
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
"""What one row shows of a language model, whose steps take minutes where a network's take seconds."""


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """What was found, the worst first; `healthy` alone, with notes, when it is nothing bad."""

    findings: tuple[Finding, ...]

    @property
    def is_healthy(self) -> bool:
        """Whether nothing was found that is more than a note."""
        return all(finding.severity == Severity.NOTE for finding in self.findings)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of what was found."""
        return tuple(finding.name for finding in self.findings)

    @property
    def tag(self) -> str:
        """Return it in a word or a few, for a run's tag: `healthy`, or the names of what is more than a note."""
        return HEALTHY if self.is_healthy else ", ".join(each.name for each in self.findings if each.severity != Severity.NOTE)

    def facts(self) -> dict[str, Any]:
        """Return plain data."""
        return {"verdict": HEALTHY if self.is_healthy else "findings", "findings": [finding.facts() for finding in self.findings]}

    def text(self) -> str:
        """Return it for people, with evidence, cause, remedy and page of each."""
        parts = []
        for finding in self.findings:
            steps = "" if finding.first_step is None else f" (steps {finding.first_step:,} to {finding.last_step:,})"
            evidence = "".join(f"\n  seen    {each}" for each in finding.evidence)
            parts.append(
                f"{finding.severity.value.upper():8}  {finding.name}{steps}: {ENTRIES[finding.name].meaning}{evidence}"
                f"\n  cause   {finding.cause}\n  remedy  {finding.remedy}\n  more    {finding.page}"
            )
        return "\n\n".join(parts)


def diagnose(history: History, settings: Mapping[str, Any] | None = None) -> Diagnosis:
    """Return what the history shows.

    Args:
        history: of one run.
        settings: the run's, ours or another trainer's, as plain data; they sharpen evidence and remedy, and change no verdict. What a
            settings file recorded of the run (`final`, `ranges`) counts as history.
    """
    case = Case(with_recorded(history, settings), Given(settings))
    found = [finding for rule in RULES.values() if (finding := rule(case)) is not None]
    found.sort(key=lambda finding: _WORST_FIRST.index(finding.severity))  # Stable: of equals in the table's order.
    if all(finding.severity == Severity.NOTE for finding in found):
        found.insert(0, case.found(HEALTHY, (f"{len(RULES)} rules over {history.num_rows:,} rows",)))
    return Diagnosis(tuple(found))


class Watch:
    """The same rules on a run that is under way: tells each finding once, when it begins."""

    def __init__(self, settings: Mapping[str, Any] | None = None) -> None:
        """Begin; the settings are the run's."""
        self._settings = settings
        self._history = History(is_ours=True)
        self._told: set[str] = set()
        self._num_seen = 0

    def observe(self, record: Record) -> tuple[Finding, ...]:
        """Take the next record, and return what is found with it that was not found before.

        Rules are asked at every tenth record, from the twentieth on, so that they cost next to nothing and a few odd rows are no finding;
        at each at which a number is not finite. Of a language model, what one row shows is told with that row. The same records give the
        same findings, so that a run that goes on after a kill is fed its journal again.
        """
        num_bad = len(self._history.not_finite)
        self._history.add(record)
        self._num_seen += 1
        is_bad = len(self._history.not_finite) > num_bad
        if is_bad or (self._num_seen >= _MIN_ROWS and self._num_seen % _STEPS_BETWEEN_LOOKS == 0):
            return self._new(self.diagnosis())
        if self._history.is_of_words:
            return self._new(Diagnosis(tuple(each for each in self.diagnosis().findings if each.name in _AT_ONCE)))
        return ()

    def diagnosis(self) -> Diagnosis:
        """Return what all records so far show."""
        return diagnose(self._history, self._settings)

    def _new(self, found: Diagnosis) -> tuple[Finding, ...]:
        new = tuple(each for each in found.findings if each.severity != Severity.NOTE and each.name not in self._told)
        self._told |= {each.name for each in new}
        return new
