"""A run's history in, named findings out: each with evidence, its true cause, and a remedy."""

from grpo.diagnosis.diagnose import RULES, Diagnosis, Watch, diagnose
from grpo.diagnosis.findings import ENTRIES, FINDINGS, Finding, Severity
from grpo.diagnosis.history import Evaluation, History, Row, Series, Summary
from grpo.diagnosis.reading import HistoryError, read_history

__all__ = [
    "ENTRIES",
    "FINDINGS",
    "RULES",
    "Diagnosis",
    "Evaluation",
    "Finding",
    "History",
    "HistoryError",
    "Row",
    "Series",
    "Severity",
    "Summary",
    "Watch",
    "diagnose",
    "read_history",
]
