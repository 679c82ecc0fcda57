"""Asks the checks of a history: before the first update, while a run trains, and of the whole."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from grpo.base.errors import PlainError
from grpo.diagnosis.checks import CHECKS, Check
from grpo.diagnosis.finds import Evidence, Severity
from grpo.diagnosis.history import History, When
from grpo.diagnosis.records import Record

HEALTHY: Final = "healthy"
FINDINGS: Final = "findings"
NOT_JUDGED: Final = "not judged"
_LEAST: Final = {
    "a reward": ("reward", "gain", "training_regret", "regret", "regret_best"),
    "an entropy or a KL": ("entropy", "normalised_entropy", "kl", "kl_old"),
}
"""What must be known of a run that is called healthy."""
_LEAST_ROWS: Final = 10


class NotLearnableError(PlainError, RuntimeError):
    """GRPO would learn nothing here, or something else than it says; the message names each reason."""


@dataclass(frozen=True, slots=True)
class Finding:
    """A check that found something."""

    check: Check
    evidence: Evidence

    @property
    def name(self) -> str:
        """Name of the check."""
        return self.check.name

    @property
    def severity(self) -> Severity:
        """What it means for the run."""
        return self.evidence.severity or self.check.consequence

    @property
    def line(self) -> str:
        """The finding in a line."""
        return f"{self.name}: {'; '.join(self.evidence.words)}. {self.check.advice}"

    def facts(self) -> dict[str, Any]:
        """Return the finding as plain data."""
        return {
            "name": self.name,
            "severity": self.severity.value,
            "evidence": list(self.evidence.words),
            "first_step": round(self.evidence.begin),
            "last_step": round(self.evidence.end),
            "means": self.check.means,
            "advice": self.check.advice,
            "page": f"docs/troubleshooting.md#{self.name}",
        }


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """All findings: the critical ones first, then by the step at which each begins."""

    findings: tuple[Finding, ...]
    unknown: str = ""
    """What a judgement lacks; empty where there is enough."""

    @property
    def verdict(self) -> str:
        """HEALTHY, FINDINGS or NOT_JUDGED."""
        return FINDINGS if self.findings else NOT_JUDGED if self.unknown else HEALTHY

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the findings."""
        return tuple(finding.name for finding in self.findings)

    @property
    def tag(self) -> str:
        """The value of the run's tag: the verdict, or the names of all findings."""
        return ", ".join(self.names) or f"{self.verdict}{self.unknown and f': {self.unknown}'}"

    def facts(self) -> dict[str, Any]:
        """Return the diagnosis as plain data."""
        return {"verdict": self.verdict, "tag": self.tag, "findings": [finding.facts() for finding in self.findings]}

    def text(self) -> str:
        """Return the findings with evidence, meaning, advice and page of each."""
        return "\n\n".join(
            f"{each['severity'].upper():8}  {each['name']}, from step {each['first_step']:,} to {each['last_step']:,}"
            + "".join(f"\n  seen    {words}" for words in each["evidence"])
            + f"\n  means   {each['means']}\n  advice  {each['advice']}\n  more    {each['page']}"
            for each in map(Finding.facts, self.findings)
        )


def diagnose(history: History) -> Diagnosis:
    """Return what the checks find in a run's history."""
    found = [
        Finding(check, evidence)
        for check in CHECKS
        if history.when in check.when and all(name in history.series for name in check.needs)
        if (evidence := check.finds(history)) is not None
    ]
    return Diagnosis(_in_order(found), _unknown(history))


def _in_order(found: Iterable[Finding]) -> tuple[Finding, ...]:
    return tuple(sorted(found, key=lambda finding: (finding.severity != Severity.CRITICAL, finding.evidence.begin)))


def _unknown(history: History) -> str:
    """Return which quantities and rows a judgement lacks."""
    missing = [words for words, names in _LEAST.items() if not any(name in history.series for name in names)]
    if missing:
        return f"no column is known for {' and for '.join(missing)}"
    rows = min(max(len(history.series[name].values) for name in names if name in history.series) for names in _LEAST.values())
    return "" if rows >= _LEAST_ROWS else f"{rows} rows are too few"


def look_before(metrics: Mapping[str, float], *, step: int, limits: Mapping[str, float]) -> Diagnosis:
    """Return what speaks against learning, from the metrics of the first rollout; a critical finding refuses.

    Args:
        metrics: of the rollout that the next step will make, without its update.
        step: the number of that step; in the first of a run, policy and reference must be equal.
        limits: `critical_entropy`.
    """
    history = History(when=When.BEFORE, is_ours=True, limits=limits)
    history.add(step, metrics)
    return diagnose(history)


def refuse(found: Diagnosis) -> None:
    """Raise NotLearnableError with all critical findings when there is one."""
    reasons = [f"  {finding.line}" for finding in found.findings if finding.severity == Severity.CRITICAL]
    if reasons:
        raise NotLearnableError("GRPO is refused before its first update:\n" + "\n".join(reasons))


class Watch:
    """Asks the checks while a run trains, and tells each finding once."""

    def __init__(self) -> None:
        """Begin an empty history."""
        self._history = History(is_ours=True, when=When.DURING)
        self._told: dict[str, Finding] = {}
        self._num_steps = 0

    def observe(self, record: Record) -> tuple[Finding, ...]:
        """Add the next record, and return the new findings; equal records give equal findings.

        The checks are asked after the first step and every tenth one (of a long run every hundredth of it), and at NaN or infinity.
        """
        num_bad = len(self._history.not_finite)
        self._history.add_record(record)
        is_due = self._num_steps == 1 or self._num_steps % max(10, self._num_steps // 1_000 * 10) == 0
        self._num_steps += 1  # The first record is of what there was before the first step.
        if not is_due and len(self._history.not_finite) == num_bad:
            return ()
        new = tuple(finding for finding in diagnose(self._history).findings if finding.name not in self._told)
        self._told |= {finding.name: finding for finding in new}
        return new

    def diagnosis(self) -> Diagnosis:
        """Return the diagnosis of all records so far; what was told stays in it, with its steps."""
        self._history.when = When.END
        found = diagnose(self._history)
        self._history.when = When.DURING
        told = (finding for name, finding in self._told.items() if name not in found.names)
        return Diagnosis(_in_order((*found.findings, *told)), found.unknown)
