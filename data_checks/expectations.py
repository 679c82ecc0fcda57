"""Runs suites of checks with Great Expectations. A check is one or several expectations (conditions on a column or table)."""

import html
import logging
import os
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from data_checks.columns import WHERE, Columns
from data_checks.report import MAX_EXAMPLES, CheckResult

if TYPE_CHECKING:
    import pandas as pd
    from great_expectations.core import ExpectationValidationResult
    from great_expectations.expectations import Expectation

_SITE: Final = "data_docs"
_TEXTS: Final = (WHERE, "split", "phase", "key", "game_id", "engine", "limit")  # All other columns must be numbers.


@dataclass(frozen=True, slots=True)
class Check:
    name: str
    meaning: str
    """Condition, as a sentence."""
    remedy: str
    """Usual cause of a failure, and remedy."""
    expectations: "Mapping[str, Expectation]"
    """Label in messages (for a condition on cells, the column) -> expectation."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Suite:
    name: str
    checks: Sequence[Check]
    columns: Columns


def prepare_great_expectations() -> None:
    """Import Great Expectations without analytics, before any other use."""
    os.environ["GX_ANALYTICS_ENABLED"] = "false"
    show_warning = warnings.showwarning
    import great_expectations  # noqa: F401

    # The import redirects warnings to the log, which drops them by default.
    if warnings.showwarning is not show_warning:
        logging.captureWarnings(False)


def run_suites(suites: Sequence[Suite], *, data_docs: Path | None = None) -> dict[str, list[CheckResult]]:
    """Return suite -> results, in the order of the checks. `data_docs`: folder for Great Expectations' HTML report; None: no report."""
    from great_expectations import ExpectationSuite, ValidationDefinition, get_context
    from great_expectations.data_context.types.base import DataContextConfig, InMemoryStoreBackendDefaults, ProgressBarsConfig

    # The default configuration would create a temporary folder and draw progress bars.
    context = get_context(
        mode="ephemeral",
        project_config=DataContextConfig(
            store_backend_defaults=InMemoryStoreBackendDefaults(),
            progress_bars=ProgressBarsConfig(globally=False),
            analytics_enabled=False,
            data_docs_sites={} if data_docs is None else {_SITE: _site(data_docs)},
        ),
    )
    source = context.data_sources.add_pandas("memory")
    reports = {}
    for suite in suites:
        batch = source.add_dataframe_asset(suite.name).add_batch_definition_whole_dataframe("whole")
        expectations = ExpectationSuite(
            name=suite.name,
            expectations=[
                expectation.copy(update={"meta": {"check": check.name, "label": label}})
                for check in suite.checks
                for label, expectation in check.expectations.items()
            ],
            notes=[f"**{check.name}**: {html.escape(check.meaning)}" for check in suite.checks],
        )
        definition = context.validation_definitions.add(
            ValidationDefinition(name=suite.name, data=batch, suite=context.suites.add(expectations))
        )
        outcome = definition.run(
            batch_parameters={"dataframe": _frame(suite)},
            result_format={"result_format": "COMPLETE", "unexpected_index_column_names": [WHERE]},
        )
        # Great Expectations reorders the expectations, so results are found by name.
        results = {(result.expectation_config.meta["check"], result.expectation_config.meta["label"]): result for result in outcome.results}
        reports[suite.name] = [_result(check, [results[check.name, label] for label in check.expectations]) for check in suite.checks]
    if data_docs is not None:
        context.build_data_docs(site_names=[_SITE])
        _drop_unused_images(data_docs)  # 3 MB of a guided tour, which `_site` disables.
    return reports


def _frame(suite: Suite) -> "pd.DataFrame":
    """Texts are escaped, because Great Expectations' pages do not escape them."""
    import pandas as pd

    expectations = [expectation for check in suite.checks for expectation in check.expectations.values()]
    used = {WHERE, "split", "phase", *(getattr(expectation, "column", WHERE) for expectation in expectations)}
    frame = pd.DataFrame({name: values for name, values in suite.columns.items() if name in used})
    for name, column in frame.items():
        if name in _TEXTS:
            frame[name] = column.map(html.escape, na_action="ignore").astype("str")
        else:
            frame[name] = column.astype("float64")
    return frame


def _site(folder: Path) -> dict[str, Any]:
    return {
        "class_name": "SiteBuilder",
        "show_how_to_buttons": False,
        "store_backend": {"class_name": "TupleFilesystemStoreBackend", "base_directory": str(folder.resolve())},
        "site_index_builder": {"class_name": "DefaultSiteIndexBuilder"},
    }


def _drop_unused_images(folder: Path) -> None:
    pages = "".join(path.read_text(encoding="utf-8") for path in folder.rglob("*.html"))
    for path in (folder / "static" / "images").iterdir():
        if path.name not in pages:
            path.unlink()


def _result(check: Check, results: "Sequence[ExpectationValidationResult]") -> CheckResult:
    num_checked = num_unexpected = 0
    examples: list[str] = []
    for label, result in zip(check.expectations, results, strict=True):
        facts = result.result
        if "observed_value" in facts:  # Condition on the table.
            num_checked += 1
            num_unexpected += not result.success
            if not result.success:
                value = facts["observed_value"]
                examples.append(f"{label}: none found" if value is None else f"{label}: {value:,.6g} found")
        elif "unexpected_count" in facts:  # Condition on each cell.
            num_checked += facts["element_count"] - facts.get("missing_count", 0)
            num_unexpected += facts["unexpected_count"]
            listed = facts.get("unexpected_index_list") or []
            examples += [f"{html.unescape(row[WHERE])}: {label} {row[label]}" for row in listed[:MAX_EXAMPLES]]
        else:
            # Great Expectations turns its own errors into failed expectations.
            raise RuntimeError(f"Great Expectations could not run {check.name} ({label}): {result.exception_info}")
    return CheckResult(
        name=check.name,
        meaning=check.meaning,
        remedy=check.remedy,
        is_met=all(result.success for result in results),
        num_checked=num_checked,
        num_unexpected=num_unexpected,
        examples=tuple(dict.fromkeys(examples))[:MAX_EXAMPLES],
    )
