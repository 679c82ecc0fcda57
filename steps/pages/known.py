"""Reads a run's results, diagnosis and dataset. A missing or unreadable document gives None."""

import sys
from contextlib import suppress
from typing import TYPE_CHECKING

from grpo.base.documents import DocumentError, read_document
from grpo.base.files import CorruptError
from grpo.diagnosis.findings import Diagnosis
from steps.names import FINDINGS, REPORT, RESULTS
from steps.pages.results import Dataset, Results, read_dataset, read_results

if TYPE_CHECKING:
    from steps.run.records import Run
    from steps.run.store import Store


def results_of(run: "Run | None", store: "Store") -> Results | None:
    """Unreadable results give None and a line on stderr."""
    if run is None or (reported := run.output_of("report")) is None:
        return None
    try:
        return read_results(store.file(reported, RESULTS))
    except (CorruptError, DocumentError) as error:
        print(f"run {run.name} without its results: {error}", file=sys.stderr)
        return None


def findings_of(run: "Run", results: Results | None, store: "Store") -> Diagnosis | None:
    """Return the diagnosis of the results or, without results, of `finetune`."""
    if results is not None:
        return results.findings
    if (finetuned := run.output_of("finetune")) is not None:
        with suppress(CorruptError, DocumentError):
            return read_document(store.file(finetuned, FINDINGS), Diagnosis)
    return None


def dataset_of(run: "Run", store: "Store") -> Dataset | None:
    if (joined := run.output_of("join_boards")) is not None:
        with suppress(CorruptError, DocumentError):
            return read_dataset(store.file(joined, REPORT), joined["output_hash"])
    return None


def summary_of(run: "Run", store: "Store") -> dict[str, str]:
    """Return a line for each of `data`, `verdict` and `findings` that is known."""
    results, lines = results_of(run, store), dict[str, str]()
    if (dataset := dataset_of(run, store)) is not None:
        lines["data"] = str(dataset)
    if results is not None:
        lines["verdict"] = f"{results.decision.verdict}. {results.decision.sentence}"
    if (diagnosis := findings_of(run, results, store)) is not None:
        lines["findings"] = diagnosis.tag
    return lines
