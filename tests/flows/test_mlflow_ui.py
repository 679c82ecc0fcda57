"""The real MLflow UI after a real run, in a real browser: what a person sees who opens it."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from real_flow import FlowRun, run_flow

from infra.browser import Page, browser, missing
from infra.mlflow_server import mlflow_ui
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

    def go(self, place: str, *wanted: str) -> str:
        self.page.go("about:blank")  # Else it is the same page still, which shows what it likes.
        self.page.go(f"{self.address}/#{place}")
        return self.page.wait_for(*wanted)

    def go_to_run(self, step: str, tab: str, *wanted: str) -> str:
        return self.go(f"/experiments/{self.experiment}/runs/{self.found(step).info.run_id}/{tab}".rstrip("/"), *wanted)


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


def test_the_experiment_says_what_it_is_and_its_view_lists_the_run_with_its_verdict(shown: Shown) -> None:
    shown.go(f"/experiments/{shown.experiment}/runs", "Teach a network chess by imitation", "matching runs")
    verdict = shown.found("flow").data.tags["chess_grpo.verdict"]
    text = shown.go(
        f"/experiments/{shown.experiment}/runs?viewStateShareKey=chess-grpo-runs", shown.run.run_id, verdict, "run/regret_after"
    )
    assert not [step for step in STEP_NOTES if run_name(step) in text], "of steps there is nothing among the runs"


def test_the_parents_steps_are_listed_in_their_order(shown: Shown) -> None:
    shown.go(f"/experiments/{shown.experiment}/runs?viewStateShareKey=chess-grpo-steps", shown.run.run_id)
    shown.page.find("[data-component-id*='runnamecellrenderer']")[0].click()
    text = shown.page.wait_for(*(run_name(step) for step in STEP_NOTES))
    places = [text.index(name) for name in (shown.run.run_id, *(run_name(step) for step in STEP_NOTES))]
    assert places == sorted(places)
    assert "Failed" not in text


def test_the_parents_page_begins_with_the_verdict_and_has_settings_and_headlines(shown: Shown) -> None:
    verdict = shown.found("flow").data.tags["chess_grpo.verdict"]
    text = shown.go_to_run("flow", "", f"Verdict: {verdict}", "Show more", "Parameters (", "selection/score_best", "run/regret_after")
    assert text.index("Verdict") < text.index("Metrics (") < text.index("Parameters (")
    assert "boards (" in text, "its dataset"
    shown.page.click("Show more")
    shown.page.wait_for("candidate against pretrained, best moves", "Command.", 'preset = "', "All settings are those of the preset")


def test_metric_charts_are_drawn_in_groups(shown: Shown) -> None:
    shown.go_to_run("finetune", "model-metrics", "control", "entropy_coefficient", "grpo", "heldout")
    assert shown.page.find(".js-plotly-plot svg path.js-line")


def test_the_registered_model_has_its_aliases_and_a_version_leads_to_its_run(shown: Shown) -> None:
    shown.go("/models/chess-policy", "champion", "peak", "the one to play")
    version = shown.client.get_model_version_by_alias("chess-policy", "champion")
    shown.go(f"/models/chess-policy/versions/{version.version}", "Champion of its run", "10 select", "Verdict of its run")
    [link] = shown.page.find(f"a[href*='{shown.found('flow').info.run_id}']")
    assert link.text == "The run that chose it"
    shown.go(str(link.get_attribute("href")).partition("#")[2], "Verdict: ", "Parameters (")
