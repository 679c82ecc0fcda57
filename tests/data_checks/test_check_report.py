"""The report: readable when something failed, short when not, and plain data for other programs."""

import json

from data_checks.report import CheckReport, CheckResult, DatasetReport

SOUND = CheckResult(name="sound", meaning="All is well.", remedy="none", is_met=True, num_checked=1_234, num_unexpected=0, examples=())
BROKEN = CheckResult(
    name="in_range",
    meaning="Every value is within [0, 1].",
    remedy="make the values again",
    is_met=False,
    num_checked=30_000,
    num_unexpected=2,
    examples=("row 3: 1.5", "row 9: nan"),
)


def test_the_text_lists_every_check_and_explains_those_that_failed() -> None:
    assert CheckReport(results=(SOUND, BROKEN)).as_text() == (
        "ok    sound         1,234 checked  All is well.\n"
        "FAIL  in_range     30,000 checked  Every value is within [0, 1].\n"
        "1 of 2 checks failed\n"
        "\n"
        "in_range: 2 of 30,000 break the rule: Every value is within [0, 1].\n"
        "  - row 3: 1.5\n"
        "  - row 9: nan\n"
        "  remedy: make the values again"
    )


BOTH = DatasetReport(suites={"games": CheckReport(results=(SOUND,)), "values": CheckReport(results=(SOUND, BROKEN))})


def test_a_dataset_is_fit_when_all_its_suites_are() -> None:
    fit = DatasetReport(suites={"games": CheckReport(results=(SOUND,)), "values": CheckReport(results=(SOUND, SOUND))})
    assert (fit.is_met, fit.num_failed, fit.num_checks) == (True, 0, 3)
    assert fit.verdict == "all 3 checks are met"
    assert (BOTH.is_met, BOTH.num_failed, BOTH.num_checks) == (False, 1, 3)
    assert BOTH.verdict == "1 of 3 checks failed: values: in_range"


def test_the_text_of_a_dataset_names_its_suites_in_order() -> None:
    games, values = BOTH.suites.values()
    assert BOTH.as_text() == (
        f"1 of 3 checks failed: values: in_range\n\n== games ==\n{games.as_text()}\n\n== values ==\n{values.as_text()}"
    )


def test_the_report_of_a_dataset_as_data_survives_json() -> None:
    data = BOTH.to_dict()

    assert json.loads(json.dumps(data)) == data
    assert (data["is_met"], data["num_failed"], data["num_checks"]) == (False, 1, 3)
    assert data["suites"] == [{"name": name} | report.to_dict() for name, report in BOTH.suites.items()]
