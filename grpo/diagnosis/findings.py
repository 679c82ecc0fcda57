"""The findings of a diagnosis: the document `findings.json`, which pages read without the checks."""

from enum import StrEnum

from grpo.base.documents import Document


class Severity(StrEnum):
    """Weight of a finding."""

    WARNING = "warning"
    """Something does not serve its purpose."""
    CRITICAL = "critical"
    """The run's measurements or its policy are not reliable; before the first update: it is refused."""


class Finding(Document):
    """A check that found something."""

    name: str
    """Name of the check."""
    severity: Severity
    evidence: tuple[str, ...]
    """Facts with numbers and steps."""
    first_step: int
    last_step: int
    means: str
    """The fault, and its reason."""
    advice: str
    cause: str = ""
    """Name of the finding that this one may follow from, or ""."""

    @property
    def page(self) -> str:
        """The page that explains it."""
        return f"docs/troubleshooting.md#{self.name}"

    @property
    def line(self) -> str:
        """The finding in a line."""
        return f"{self.name}: {'; '.join(self.evidence)}. {self.advice}"

    def text(self) -> str:
        """Return evidence, meaning, advice and page; of what follows from another finding a line."""
        if self.cause:
            return f"\n  then    {self.name}, from step {self.first_step:,}: {'; '.join(self.evidence)}"
        head = f"\n\n{self.severity.value.upper():8}  {self.name}, from step {self.first_step:,} to {self.last_step:,}"
        seen = "".join(f"\n  seen    {each}" for each in self.evidence)
        return f"{head}{seen}\n  means   {self.means}\n  advice  {self.advice}\n  more    {self.page}"


class Diagnosis(Document):
    """All findings: a cause before what may follow from it, then the critical ones first, then by the step at which each begins."""

    findings: tuple[Finding, ...]
    verdict: str
    """HEALTHY, FINDINGS, NOT_SHOWN or NOT_JUDGED of `grpo.diagnosis.diagnose`."""
    words: str
    """The verdict of a run without findings, with the reason."""
    not_judged: tuple[str, ...] = ()
    """Checks that cannot tell, or whose quantity was not recorded, each with the reason."""

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the findings."""
        return tuple(finding.name for finding in self.findings)

    @property
    def tag(self) -> str:
        """The value of the run's tag: the names of all findings, else the verdict."""
        return ", ".join(self.names) or self.words

    def text(self) -> str:
        """Return the findings; beneath a cause, what may follow from it in a line each."""
        return "".join(finding.text() for finding in self.findings).strip()
