"""Runs named Great Expectations checks over a frame, in memory and in silence, and tells the outcome in plain words."""

import logging
import os
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from data_checks.report import MAX_EXAMPLES, CheckReport, CheckResult

if TYPE_CHECKING:
    import pandas as pd
    from great_expectations.core import ExpectationValidationResult
    from great_expectations.expectations import Expectation

# Great Expectations lists this many unexpected values; a key that occurs often fills some places of the list with itself.
_NUM_LISTED: Final = 100


@dataclass(frozen=True, kw_only=True, slots=True)
class NamedCheck:
    """One thing that must hold of a frame, as one or more expectations."""

    name: str
    meaning: str
    remedy: str
    expectations: Mapping[str, "Expectation"]
    """Label -> expectation. The label says which rows a row count is about; elsewhere the unexpected values speak for themselves."""


def prepare_great_expectations() -> None:
    """Import Great Expectations, which takes seconds, without analytics and without its hand on Python's warnings."""
    os.environ["GX_ANALYTICS_ENABLED"] = "false"
    show_warning = warnings.showwarning
    import great_expectations  # noqa: F401

    # Its import turns all of the program's warnings into log records, and unless logging is set up those are lost.
    if warnings.showwarning is not show_warning:
        logging.captureWarnings(False)


def run_checks(checks: Sequence[NamedCheck], frame: "pd.DataFrame") -> CheckReport:
    """Return what the checks find in the frame; nothing is printed or written."""
    prepare_great_expectations()
    from great_expectations import ExpectationSuite, get_context
    from great_expectations.data_context.types.base import DataContextConfig, InMemoryStoreBackendDefaults, ProgressBarsConfig

    # The default of an ephemeral context makes a temporary folder and draws progress bars.
    context = get_context(
        mode="ephemeral",
        project_config=DataContextConfig(
            store_backend_defaults=InMemoryStoreBackendDefaults(),
            progress_bars=ProgressBarsConfig(globally=False),
            analytics_enabled=False,
        ),
    )
    asset = context.data_sources.add_pandas("memory").add_dataframe_asset("table")
    batch = asset.add_batch_definition_whole_dataframe("whole").get_batch({"dataframe": frame})
    suite = ExpectationSuite(
        name="suite",
        expectations=[
            expectation.copy(update={"meta": {"check": check.name, "label": label}})
            for check in checks
            for label, expectation in check.expectations.items()
        ],
    )
    outcome = batch.validate(suite, result_format={"result_format": "BASIC", "partial_unexpected_count": _NUM_LISTED})
    found = {}
    for result in outcome.results:
        # They come in an order of Great Expectations' own.
        meta = result.expectation_config.meta
        found[meta["check"], meta["label"]] = result
    return CheckReport(results=tuple(_result(check, [found[check.name, label] for label in check.expectations]) for check in checks))


def _result(check: NamedCheck, results: "Sequence[ExpectationValidationResult]") -> CheckResult:
    num_checked = num_unexpected = 0
    examples: list[str] = []
    for label, result in zip(check.expectations, results, strict=True):
        found = result.result
        if "observed_value" in found:
            num_checked += 1
            num_unexpected += not result.success
            examples += [] if result.success else [f"{label}: {found['observed_value']:,} found"]
        elif "unexpected_count" in found:
            num_checked += found["element_count"] - found["missing_count"]
            num_unexpected += found["unexpected_count"]
            examples += [str(value) for value in found["partial_unexpected_list"]]
        else:
            # Great Expectations turns an error of its own into an expectation that is not met.
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
