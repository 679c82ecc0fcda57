"""Applies the checks to a run's history: before the first update, during training, and at the end."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Final

from grpo.base.errors import PlainError
from grpo.diagnosis.assessment import Assessment, Evidence, Unclear
from grpo.diagnosis.checks import CHECKS, DiagnosisCheck
from grpo.diagnosis.findings import Diagnosis, Finding, Severity
from grpo.diagnosis.history import History, When
from grpo.metrics.records import Record
from grpo.settings.names import flattened
from grpo.settings.tree import Settings

HEALTHY: Final = "healthy"
FINDINGS: Final = "findings"
NOT_JUDGED: Final = "not judged"
NOT_SHOWN: Final = "nothing found"  # No fault, and no rise is shown.
_NEEDED: Final = {
    "a reward": ("reward", "gain", "training_regret", "regret", "regret_best"),
    "an entropy or a KL": ("entropy", "normalized_entropy", "kl", "kl_old"),
}
"""Group -> quantities (meanings of columns). A run is judged only if each group has a quantity with at least `_MIN_ROWS` rows."""
_MIN_ROWS: Final = 10
_LEADS_TO: Final = {check.name: check.leads_to for check in CHECKS}


class NotLearnableError(PlainError, RuntimeError):
    """GRPO would learn nothing, or something else than the settings say."""


def diagnose(history: History, settings: Settings | None = None) -> Diagnosis:
    """Diagnose a history. Given `settings`, advice shows the named settings' values and defaults."""
    run, faults, not_judged = Assessment(history), list[tuple[DiagnosisCheck, Evidence]](), list[str]()
    for check in CHECKS:
        if history.when not in check.when:
            continue
        if missing := check.missing(history):
            not_judged.append(f"{check.name} (no {missing})")
        elif isinstance(answer := check.finds(run), Evidence):
            faults.append((check, answer))
        elif isinstance(answer, Unclear):
            not_judged.append(f"{check.name} ({answer.reason})")
    lack = _lack(history)
    verdict = NOT_JUDGED if lack else HEALTHY if run.rises or run.is_high else NOT_SHOWN  # A reward near its maximum cannot rise.
    words = f"{verdict}: {lack}" if lack else verdict
    if verdict == NOT_SHOWN:
        words = f"{verdict}; the reward is not shown to rise in {history.num_rows:,} rows"
    findings = [
        Finding(
            name=check.name,
            severity=evidence.severity or check.severity,
            evidence=evidence.facts,
            first_step=round(evidence.begin),
            last_step=round(evidence.end),
            means=check.means,
            advice=_with_values(check.advice, settings),
        )
        for check, evidence in sorted(faults, key=lambda fault: fault[1].begin)
    ]
    return Diagnosis(findings=_in_order(findings), verdict=FINDINGS if faults else verdict, words=words, not_judged=tuple(not_judged))


def _with_values(advice: str, settings: Settings | None) -> str:
    if settings is None:
        return advice
    defaults_of_kind = Settings.model_validate({"policy": {"kind": settings.policy.kind}})
    values, defaults = (flattened(tree.model_dump(mode="json")) for tree in (settings, defaults_of_kind))

    def with_value(match: re.Match[str]) -> str:
        if match[1] not in values:
            return match[0]
        value, default = values[match[1]], defaults.get(match[1])
        return f"{match[0]} (here {value}, the default{'' if value == default else f' is {default}'})"

    return re.sub(r"`([a-z_.]+)`", with_value, advice)


def _in_order(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    waiting = sorted(findings, key=lambda finding: (finding.severity != Severity.CRITICAL, finding.first_step))
    ordered: list[Finding] = []
    while waiting:
        consequences = {name for finding in waiting for name in _LEADS_TO[finding.name] - {finding.name}}
        # Take a finding whose cause is not waiting. If causes form a circle, take the first finding.
        cause = next((finding for finding in waiting if finding.name not in consequences), waiting[0])
        following = [finding for finding in waiting if finding is not cause and finding.name in _LEADS_TO[cause.name]]
        ordered += [cause.model_copy(update={"cause": ""}), *(finding.model_copy(update={"cause": cause.name}) for finding in following)]
        waiting = [finding for finding in waiting if finding is not cause and finding not in following]
    return tuple(ordered)


def _lack(history: History) -> str:
    missing = [group for group, names in _NEEDED.items() if not any(name in history.series for name in names)]
    if missing:
        return f"no column is known for {' and for '.join(missing)}"
    rows = min(max(len(history.series[name]) for name in names if name in history.series) for names in _NEEDED.values())
    return "" if rows >= _MIN_ROWS else f"{rows} rows are too few"


def look_before(metrics: Mapping[str, float], *, step: int, limits: Mapping[str, float]) -> Diagnosis:
    """Return the diagnosis of the first rollout, before any update. `limits`: `critical_entropy` -> nats."""
    history = History(when=When.BEFORE, limits=limits)
    history.add(step, metrics)
    return diagnose(history)


def refuse(diagnosis: Diagnosis) -> None:
    """Raise NotLearnableError with all critical findings, if any."""
    reasons = [f"  {finding.line}" for finding in diagnosis.findings if finding.severity == Severity.CRITICAL]
    if reasons:
        raise NotLearnableError("GRPO is refused before its first update:\n" + "\n".join(reasons))


class Watch:
    def __init__(self, settings: Settings | None = None) -> None:
        self._history = History(when=When.DURING)
        self._settings = settings
        self._reported: dict[str, Finding] = {}
        self._num_steps = 0

    def observe(self, record: Record) -> tuple[Finding, ...]:
        """Add the next record and return the findings that are new.

        The checks run when a column first has NaN or infinity, and at records 0 (before step 1), 1, 10, 20 and so on, less
        often from record 2,000 on.
        """
        num_bad = len(self._history.not_finite)
        self._history.add_record(record)
        is_due = self._num_steps == 1 or self._num_steps % max(10, self._num_steps // 1_000 * 10) == 0
        self._num_steps += 1
        if not is_due and len(self._history.not_finite) == num_bad:
            return ()
        new = tuple(finding for finding in diagnose(self._history, self._settings).findings if finding.name not in self._reported)
        self._reported |= {finding.name: finding for finding in new}
        return new

    def diagnosis(self) -> Diagnosis:
        """Return the diagnosis of all records so far, with all findings of `observe`."""
        diagnosis = diagnose(replace(self._history, when=When.END), self._settings)
        earlier = [finding for name, finding in self._reported.items() if name not in diagnosis.names]
        findings = _in_order((*diagnosis.findings, *earlier))
        return diagnosis.model_copy(update={"findings": findings, "verdict": FINDINGS if earlier else diagnosis.verdict})
