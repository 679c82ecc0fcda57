"""The real MLflow UI after a real run, in a real browser: what a person sees who opens it."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from real_flow import FlowRun, run_flow

from infra.browser import Page, browser, missing
from infra.mlflow_server import mlflow_ui
from steps.tracking.saved_views import CURVES, STEPS_VIEW, run_address, view_address
from steps.tracking.step_notes import STEP_NOTES, run_name


@dataclass(frozen=True)
class Shown:
    """A run, its pages' address, and a browser to look at them with."""

    run: FlowRun
    address: str
    page: Page
    client: Any

    @property
    def experiment(self) -> str:
        return str(self.client.get_experiment_by_name("chess-grpo").experiment_id)

    def found(self, step: str) -> Any:
        condition = f"tags.`chess_grpo.step` = '{step}' and tags.`metaflow.run` = '{self.run.run_id}'"
        return self.client.search_runs([self.experiment], condition)[0]

    @property
    def name(self) -> str:
        """The parent run's name, which has the verdict."""
        return str(self.found("flow").info.run_name)

    def go(self, address: str, *wanted: str) -> str:
        self.page.go("about:blank")  # Else it is the same page still, which shows what it likes.
        self.page.go(address)
        return self.page.wait_for(*wanted)

    def go_to_run(self, step: str, tab: str, *wanted: str) -> str:
        run_id = self.found(step).info.run_id
        return self.go(run_address(self.address, self.experiment, run_id).replace("?", f"{tab}?"), *wanted)


@pytest.fixture(scope="module")
def smoke_run(tmp_path_factory: pytest.TempPathFactory) -> FlowRun:
    """The preset `smoke`, from an empty directory."""
    return run_flow(tmp_path_factory.mktemp("smoke"), {"preset": "smoke"})


@pytest.fixture(scope="module", params=["first_run", pytest.param("smoke_run", marks=pytest.mark.prove)])
def shown(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shown]:
    """Give a finished run in the UI that `make ui` starts, and a browser."""
    if why := missing():
        pytest.skip(why)
    run: FlowRun = request.getfixturevalue(request.param)
    assert run.succeeded, run.output[-3000:]
    from mlflow.tracking import MlflowClient

    uri = f"sqlite:///{run.home / 'mlflow.db'}"
    with mlflow_ui(uri, tmp_path_factory.mktemp("ui") / "ui.log") as address, browser(width=1600, height=1000) as page:
        yield Shown(run, address, page, MlflowClient(uri, registry_uri=uri))


@pytest.mark.parametrize("is_dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [1440, 390])
def test_the_address_that_ui_prints_shows_the_verdict_without_a_click(shown: Shown, width: int, is_dark: bool) -> None:
    shown.page.show_on(width=width, height=1000, is_dark=is_dark, is_phone=width < 1000)
    # MLflow has no layout for phones: there the table of runs has no width left, and the address of a run is the one to open.
    text = shown.go_to_run("flow", "", "Verdict: ") if width < 1000 else shown.go(view_address(shown.address, shown.experiment), shown.name)
    assert shown.name in text
    assert shown.name.startswith(("better", "no gain shown"))
    assert not [step for step in STEP_NOTES if run_name(step) in text] or width < 1000, "of steps there is nothing among the runs"
    shown.page.show_on(width=1600, height=1000)


def test_the_table_of_runs_says_what_the_experiment_is_and_compares_runs(shown: Shown) -> None:
    shown.go(view_address(shown.address, shown.experiment), "Teach a network chess by imitation", "selection/verdict_elo")


def test_the_newest_runs_steps_are_listed_in_their_order_without_a_click(shown: Shown) -> None:
    # Other tests may have run the pipeline in this home since.
    newest = shown.client.search_runs([shown.experiment], "tags.`chess_grpo.step` = 'flow'", max_results=1)[0]
    steps = shown.client.search_runs([shown.experiment], f"tags.`metaflow.run` = '{newest.data.tags['metaflow.run']}'")
    names = sorted(step.info.run_name for step in steps)
    assert len(names) > 10
    text = shown.go(view_address(shown.address, shown.experiment, STEPS_VIEW), *names)
    places = [text.index(name) for name in names]
    assert places == sorted(places)
    assert "Failed" not in text


def test_the_view_of_curves_has_a_smoothed_chart_of_each(shown: Shown) -> None:
    text = shown.go(view_address(shown.address, shown.experiment, CURVES), "(6)", "curves/1 reward gain", "curves/2 held-out regret")
    assert shown.name in text
    assert shown.page.find(".js-plotly-plot svg path.js-line")


def test_the_parents_page_begins_with_the_verdict_and_has_settings_and_headlines(shown: Shown) -> None:
    verdict = shown.found("flow").data.tags["chess_grpo.verdict"]
    text = shown.go_to_run(
        "flow", "", f"Verdict: {verdict}", "Show more", "Parameters (", "selection/verdict_elo", "selection/heldout_regret"
    )
    assert text.index("Verdict") < text.index("Metrics (") < text.index("Parameters (")
    assert re.search(r"\w+ boards, [\d,]+ \(", text), "its dataset"
    shown.page.click("Show more")
    shown.page.wait_for(
        "gain in Elo, against",
        "Elo above a random mover",
        "candidate against pretrained, best moves",
        "Command.",
        'preset = "',
        "All settings are those of the preset",
    )


def test_metric_charts_are_drawn_in_groups(shown: Shown) -> None:
    for step in ("finetune", "flow"):
        text = shown.go_to_run(step, "/model-metrics", "1 reward gain", "2 held-out regret", "6 learning rate")
        groups = re.findall(r"^(\w+)\n\(\d+\)$", text, re.MULTILINE)
        assert groups[0] == "curves"
        assert text.index("1 reward gain") < text.index("2 held-out regret") < text.index("4 entropy")
        assert "zz_detail" not in groups[:-1], "details stand at the end"
    assert shown.page.find(".js-plotly-plot svg path.js-line")


def test_the_registered_model_has_its_aliases_and_a_version_leads_to_its_run(shown: Shown) -> None:
    shown.go(f"{shown.address}/#/models/chess-policy", "champion", "peak", "the one to play")
    version = shown.client.get_model_version_by_alias("chess-policy", "champion")
    shown.go(f"{shown.address}/#/models/chess-policy/versions/{version.version}", "Champion of its run", "10 select", "Verdict of its run")
    [link] = shown.page.find(f"a[href*='{shown.found('flow').info.run_id}']")
    assert link.text == "The run that chose it"
    shown.go(str(link.get_attribute("href")), "Verdict: ", "Parameters (")
