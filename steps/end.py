"""The last step."""

from typing import Any

from steps.job.resume import Job
from steps.names import BOARDS, CHAMPION, GAMES_PAGE, PEAK, PGN, REPORT_PAGE, RESULTS
from steps.pages.results import read_results
from steps.pages.templates import finding_lines, verdict_lines
from steps.run.commands import pasteable, shortened
from steps.run.machine import Machine
from steps.run.records import Runs
from steps.run.store import Store


def end(flow: Any) -> tuple[dict[str, Any], str]:
    """Mark the run as finished, log to MLflow what is missing there, and return (results, closing text).

    - `flow`: Metaflow's, with `job` and `NAME_output` of earlier steps
    - results: JSON data, with the files' paths in `where` and the run's id in `run`
    - text: no line begins with a space, because Metaflow strips leading spaces
    """
    from steps.track.publish import SECONDS, publish_all

    job: Job = flow.job
    machine = Machine.here()
    store = Store.of(machine)
    results = read_results(store.open(flow.report_output) / RESULTS)
    select, report = store.place(flow.select_output), store.place(flow.report_output)
    paths = {
        "champion": f"{select}/{CHAMPION}",
        "peak": f"{select}/{PEAK}",
        "games": f"{select}/{PGN}",
        "viewer": f"{select}/{GAMES_PAGE}",
        "report": f"{report}/{REPORT_PAGE}",
        "results": f"{report}/{RESULTS}",
        "boards": f"{store.place(flow.join_boards_output)}/{BOARDS}",
    }
    Runs(store).begin(job["run"], "end", "", "").end("finished")
    not_logged = publish_all(machine, seconds=SECONDS).get(job["run"], "")
    findings = () if results.findings is None else results.findings.findings
    commands = {
        **({pasteable("chess-grpo diagnose last"): "what is wrong with the training, and what to change"} if findings else {}),
        pasteable(f"chess-grpo play {job['run']}"): "play against the champion",
        pasteable("chess-grpo show last"): "the same in the terminal",
        pasteable("chess-grpo card last"): "the report as a page",
        pasteable("chess-grpo ui"): "all runs in MLflow",
    }
    width = max(map(len, commands))
    lines = [
        "",
        *verdict_lines(results),
        "",
        *finding_lines(findings[:1], is_short=True),
        *([f"NOT LOGGED to MLflow yet: {not_logged}. Log it later: {pasteable('chess-grpo track')}"] if not_logged else []),
        f"Champion: {shortened(paths['champion'])}",
        f"Report: {shortened(paths['report'])}",
        "Next:",
        *(f"{command:<{width}}  # {purpose}" for command, purpose in commands.items()),
    ]
    return {**results.model_dump(mode="json"), "where": paths, "run": job["run"]}, "\n".join(lines)
