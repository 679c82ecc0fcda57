"""Runs suites of Great Expectations checks over data frames in memory, and returns plain reports."""

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
_TEXTS: Final = (WHERE, "split", "phase", "key", "game_id", "engine", "limit")
"""Columns of text; all others are numbers."""


@dataclass(frozen=True, slots=True)
class Check:
    """One check: a name, its meaning and remedy, and one or more expectations."""

    name: str
    meaning: str
    """The condition that must hold."""
    remedy: str
    """The usual cause of a failure, and how to fix it."""
    expectations: "Mapping[str, Expectation]"
    """Label -> expectation. The label says in messages what was found."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Suite:
    """Checks of one table."""

    name: str
    checks: Sequence[Check]
    columns: Columns


def prepare_great_expectations() -> None:
    """Import Great Expectations (takes seconds) without analytics, and undo its capture of Python's warnings."""
    os.environ["GX_ANALYTICS_ENABLED"] = "false"
    show_warning = warnings.showwarning
    import great_expectations  # noqa: F401

    # Its import redirects all warnings to the log, where they are lost unless logging is configured.
    if warnings.showwarning is not show_warning:
        logging.captureWarnings(False)


def run_suites(suites: Sequence[Suite], *, data_docs: Path | None = None) -> dict[str, list[CheckResult]]:
    """Run the suites and return their reports by name, without printing; only Data Docs are written, if requested.

    Call `prepare_great_expectations` before the expectations of the suites are made.

    Args:
        suites: The suites, each with its frame.
        data_docs: Folder for Great Expectations' Data Docs; None writes none.
    """
    from great_expectations import ExpectationSuite, ValidationDefinition, get_context
    from great_expectations.data_context.types.base import DataContextConfig, InMemoryStoreBackendDefaults, ProgressBarsConfig

    # The default ephemeral context creates a temporary folder and draws progress bars.
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
        whole = source.add_dataframe_asset(suite.name).add_batch_definition_whole_dataframe("whole")
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
            ValidationDefinition(name=suite.name, data=whole, suite=context.suites.add(expectations))
        )
        outcome = definition.run(
            batch_parameters={"dataframe": _frame(suite)},
            result_format={"result_format": "COMPLETE", "unexpected_index_column_names": [WHERE]},
        )
        # Great Expectations does not keep the order of the expectations.
        found = {(result.expectation_config.meta["check"], result.expectation_config.meta["label"]): result for result in outcome.results}
        reports[suite.name] = [_result(check, [found[check.name, label] for label in check.expectations]) for check in suite.checks]
    if data_docs is not None:
        context.build_data_docs(site_names=[_SITE])
        _drop_unused_images(data_docs)
    return reports


def _frame(suite: Suite) -> "pd.DataFrame":
    """Return the columns that the checks use; texts of files are escaped, for Great Expectations does not escape values in its pages."""
    import pandas as pd

    used = {WHERE, "split", "phase", *(getattr(each, "column", WHERE) for check in suite.checks for each in check.expectations.values())}
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
    """Remove images that no page uses: 3 MB of a guided tour that is switched off."""
    pages = "".join(path.read_text(encoding="utf-8") for path in folder.rglob("*.html"))
    for path in (folder / "static" / "images").iterdir():
        if path.name not in pages:
            path.unlink()


def _result(check: Check, results: "Sequence[ExpectationValidationResult]") -> CheckResult:
    num_checked = num_unexpected = 0
    examples: list[str] = []
    for label, result in zip(check.expectations, results, strict=True):
        found = result.result
        if "observed_value" in found:
            num_checked += 1
            num_unexpected += not result.success
            if not result.success:
                value = found["observed_value"]
                examples.append(f"{label}: nothing found" if value is None else f"{label}: {value:,.6g} found")
        elif "unexpected_count" in found:
            num_checked += found["element_count"] - found.get("missing_count", 0)
            num_unexpected += found["unexpected_count"]
            listed = found.get("unexpected_index_list") or []
            examples += [f"{html.unescape(row[WHERE])}: {label} {row[label]}" for row in listed[:MAX_EXAMPLES]]
        else:
            # Great Expectations reports its own errors as failed expectations.
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
