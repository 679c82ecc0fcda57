"""The document `findings.json`: a run's findings (faults)."""

from enum import StrEnum

from grpo.base.documents import Document


class Severity(StrEnum):
    WARNING = "warning"
    """A part of the training does not do its work."""
    CRITICAL = "critical"
    """Measurements or policy are not reliable."""


class Finding(Document):
    name: str
    severity: Severity
    evidence: tuple[str, ...]
    """Facts, each with numbers and steps."""
    first_step: int
    last_step: int
    means: str
    advice: str
    cause: str = ""
    """Name of a finding."""

    @property
    def page(self) -> str:
        return f"docs/troubleshooting.md#{self.name}"

    @property
    def line(self) -> str:
        return f"{self.name}: {'; '.join(self.evidence)}. {self.advice}"

    def text(self) -> str:
        """Return the finding for the terminal; with a `cause`, only the evidence."""
        if self.cause:
            return f"\n  then    {self.name}, from step {self.first_step:,}: {'; '.join(self.evidence)}"
        head = f"\n\n{self.severity.value.upper():8}  {self.name}, from step {self.first_step:,} to {self.last_step:,}"
        seen = "".join(f"\n  seen    {each}" for each in self.evidence)
        return f"{head}{seen}\n  means   {self.means}\n  advice  {self.advice}\n  more    {self.page}"


class Diagnosis(Document):
    """Findings are sorted by severity (critical first), then by `first_step`, except that a finding with a `cause` follows the cause."""

    findings: tuple[Finding, ...]
    verdict: str
    """A constant of `diagnose`: FINDINGS, HEALTHY, NOT_SHOWN (no rise of the reward is shown) or NOT_JUDGED (too little data)."""
    words: str
    """The verdict as if nothing was found, such as `not judged: 4 rows are too few`."""
    not_judged: tuple[str, ...] = ()
    """Checks that could not judge, each with the reason in parentheses."""

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(finding.name for finding in self.findings)

    @property
    def tag(self) -> str:
        return ", ".join(self.names) or self.words

    def text(self) -> str:
        return "".join(finding.text() for finding in self.findings).strip()
