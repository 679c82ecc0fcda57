"""Runs named Great Expectations checks over frames, in memory and in silence, and tells the outcome in plain words."""

import html
import logging
import os
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from data_checks.report import MAX_EXAMPLES, CheckReport, CheckResult

if TYPE_CHECKING:
    import pandas as pd
    from great_expectations.core import ExpectationValidationResult
    from great_expectations.expectations import Expectation

# Great Expectations lists this many unexpected values; a key that occurs often fills some places of the list with itself.
_NUM_LISTED: Final = 100
_SITE: Final = "data_docs"


@dataclass(frozen=True, kw_only=True, slots=True)
class NamedCheck:
    """One thing that must hold of a frame, as one or more expectations."""

    name: str
    meaning: str
    remedy: str
    expectations: Mapping[str, "Expectation"]
    """Label -> expectation. The label says which rows a row count is about; elsewhere the unexpected values speak for themselves."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Suite:
    """Checks of one frame."""

    name: str
    checks: tuple[NamedCheck, ...]
    frame: "pd.DataFrame"
    """Text only, all of it `guarded`."""


def guarded(text: str | None) -> str | None:
    """Return the text as it may stand in HTML: Great Expectations puts values into its pages as they are.

    Names of files and what stands in games' headers come from anywhere.
    """
    return html.escape(text) if text else text


def prepare_great_expectations() -> None:
    """Import Great Expectations, which takes seconds, without analytics and without its hand on Python's warnings."""
    os.environ["GX_ANALYTICS_ENABLED"] = "false"
    show_warning = warnings.showwarning
    import great_expectations  # noqa: F401

    # Its import turns all of the program's warnings into log records, and unless logging is set up those are lost.
    if warnings.showwarning is not show_warning:
        logging.captureWarnings(False)


def run_suites(suites: Sequence[Suite], *, data_docs: Path | None = None) -> dict[str, CheckReport]:
    """Return what each suite finds in its frame, by name; nothing is printed, and nothing is written but the pages asked for.

    Args:
        suites: the checks, each suite with its frame.
        data_docs: a folder for Great Expectations' own pages, its Data Docs; none are made without.
    """
    prepare_great_expectations()
    from great_expectations import ExpectationSuite, ValidationDefinition, get_context
    from great_expectations.data_context.types.base import DataContextConfig, InMemoryStoreBackendDefaults, ProgressBarsConfig

    # The default of an ephemeral context makes a temporary folder and draws progress bars.
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
            batch_parameters={"dataframe": suite.frame},
            result_format={"result_format": "BASIC", "partial_unexpected_count": _NUM_LISTED},
        )
        # Results come in an order of Great Expectations' own.
        found = {(result.expectation_config.meta["check"], result.expectation_config.meta["label"]): result for result in outcome.results}
        reports[suite.name] = CheckReport(
            results=tuple(_result(check, [found[check.name, label] for label in check.expectations]) for check in suite.checks)
        )
    if data_docs is not None:
        context.build_data_docs(site_names=[_SITE])
        _drop_unused_images(data_docs)
    return reports


def _site(folder: Path) -> dict[str, Any]:
    return {
        "class_name": "SiteBuilder",
        "show_how_to_buttons": False,
        "store_backend": {"class_name": "TupleFilesystemStoreBackend", "base_directory": str(folder.resolve())},
        "site_index_builder": {"class_name": "DefaultSiteIndexBuilder"},
    }


def _drop_unused_images(folder: Path) -> None:
    """Remove pictures that no page shows: a guided tour, of 3 MB, that is switched off."""
    pages = "".join(path.read_text(encoding="utf-8") for path in folder.rglob("*.html"))
    for path in (folder / "static" / "images").iterdir():
        if path.name not in pages:
            path.unlink()


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
            examples += [html.unescape(str(value)) for value in found["partial_unexpected_list"]]
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
