"""Asks the checks of a history: before the first update, while a run trains, and of the whole."""

import re
from collections.abc import Iterable, Mapping
from typing import Final

from grpo.base.errors import PlainError
from grpo.diagnosis.checks import CHECKS, DiagnosisCheck
from grpo.diagnosis.findings import Diagnosis, Finding, Severity
from grpo.diagnosis.history import History, When
from grpo.diagnosis.look import Evidence, Look, Unclear
from grpo.metrics.records import Record
from grpo.settings.names import flattened
from grpo.settings.tree import Settings

HEALTHY: Final = "healthy"
FINDINGS: Final = "findings"
NOT_JUDGED: Final = "not judged"
NOT_SHOWN: Final = "nothing found"
_LEAST: Final = {
    "a reward": ("reward", "gain", "training_regret", "regret", "regret_best"),
    "an entropy or a KL": ("entropy", "normalized_entropy", "kl", "kl_old"),
}
"""Quantities that a run must have to be judged."""
_LEAST_ROWS: Final = 10
_LEADS_TO: Final = {check.name: check.leads_to for check in CHECKS}


class NotLearnableError(PlainError, RuntimeError):
    """GRPO would learn nothing here, or something else than it says; the message names each reason."""


def diagnose(history: History, settings: Settings | None = None) -> Diagnosis:
    """Return what the checks find in a run's history; with the run's settings the advice names their values and the defaults."""
    look, found, unclear = Look(history), list[tuple[DiagnosisCheck, Evidence]](), list[str]()
    for check in CHECKS:
        if history.when not in check.when:
            continue
        if missing := check.missing(history):
            unclear.append(f"{check.name} (no {missing})")
        elif isinstance(answer := check.finds(look), Evidence):
            found.append((check, answer))
        elif isinstance(answer, Unclear):
            unclear.append(f"{check.name} ({answer.why})")
    unknown = _unknown(history)
    verdict = NOT_JUDGED if unknown else HEALTHY if look.rises or look.is_high else NOT_SHOWN
    reason = (
        f"; the reward is not shown to rise in {history.num_rows:,} rows" if verdict == NOT_SHOWN else f": {unknown}" if unknown else ""
    )
    findings = [_finding(check, evidence, settings) for check, evidence in sorted(found, key=lambda each: each[1].begin)]
    return Diagnosis(
        findings=_in_order(findings),
        verdict=FINDINGS if found else verdict,
        words=f"{verdict}{reason}",
        not_judged=tuple(unclear),
    )


def _finding(check: DiagnosisCheck, evidence: Evidence, settings: Settings | None) -> Finding:
    return Finding(
        name=check.name,
        severity=evidence.severity or check.severity,
        evidence=evidence.words,
        first_step=round(evidence.begin),
        last_step=round(evidence.end),
        means=check.means,
        advice=_with_values(check.advice, settings),
    )


def _with_values(advice: str, settings: Settings | None) -> str:
    """Return an advice in which each setting has the run's value and the default."""
    if settings is None:
        return advice
    kind = Settings.model_validate({"policy": {"kind": settings.policy.kind}})
    here, defaults = (flattened(each.model_dump(mode="json")) for each in (settings, kind))

    def named(match: re.Match[str]) -> str:
        value, default = (each.get(match[1]) for each in (here, defaults))
        words = f"here {value}, the default{'' if value == default else f' is {default}'}"
        return f"{match[0]} ({words})" if match[1] in here else match[0]

    return re.sub(r"`([a-z_.]+)`", named, advice)


def _in_order(found: Iterable[Finding]) -> tuple[Finding, ...]:
    rest = sorted(found, key=lambda finding: (finding.severity != Severity.CRITICAL, finding.first_step))
    ordered: list[Finding] = []
    while rest:
        # A finding that may follow from another one waits for that.
        first = next((each for each in rest if not any(each.name in _LEADS_TO[other.name] for other in rest if other is not each)), rest[0])
        following = [each for each in rest if each is not first and each.name in _LEADS_TO[first.name]]
        ordered += [first.model_copy(update={"cause": ""}), *(each.model_copy(update={"cause": first.name}) for each in following)]
        rest = [each for each in rest if each is not first and each not in following]
    return tuple(ordered)


def _unknown(history: History) -> str:
    """Return which quantities and rows a judgement lacks."""
    missing = [words for words, names in _LEAST.items() if not any(name in history.series for name in names)]
    if missing:
        return f"no column is known for {' and for '.join(missing)}"
    rows = min(max(len(history.series[name]) for name in names if name in history.series) for names in _LEAST.values())
    return "" if rows >= _LEAST_ROWS else f"{rows} rows are too few"


def look_before(metrics: Mapping[str, float], *, step: int, limits: Mapping[str, float]) -> Diagnosis:
    """Return what speaks against learning, from the metrics of the first rollout; a critical finding refuses.

    Args:
        metrics: of the rollout that the next step will make, without its update.
        step: the number of that step; in the first of a run, policy and reference must be equal.
        limits: `critical_entropy`.
    """
    history = History(when=When.BEFORE, limits=limits)
    history.add(step, metrics)
    return diagnose(history)


def refuse(found: Diagnosis) -> None:
    """Raise NotLearnableError with all critical findings when there is one."""
    reasons = [f"  {finding.line}" for finding in found.findings if finding.severity == Severity.CRITICAL]
    if reasons:
        raise NotLearnableError("GRPO is refused before its first update:\n" + "\n".join(reasons))


class Watch:
    """Asks the checks while a run trains, and tells each finding once."""

    def __init__(self, settings: Settings | None = None) -> None:
        """Begin an empty history of a run with these settings."""
        self._history = History(when=When.DURING)
        self._settings = settings
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
        new = tuple(finding for finding in diagnose(self._history, self._settings).findings if finding.name not in self._told)
        self._told |= {finding.name: finding for finding in new}
        return new

    def diagnosis(self) -> Diagnosis:
        """Return the diagnosis of all records so far; what was told stays in it, with its steps."""
        self._history.when = When.END
        found = diagnose(self._history, self._settings)
        self._history.when = When.DURING
        told = [finding for name, finding in self._told.items() if name not in found.names]
        findings = _in_order((*found.findings, *told))
        return found.model_copy(update={"findings": findings, "verdict": FINDINGS if told else found.verdict})
