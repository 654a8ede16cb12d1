"""Plays simulated clusters: one run, all runs of a small scenario, and what is wrong with each."""

import re
from collections.abc import Coroutine, Iterator
from typing import Any, NamedTuple

from support.journals import judge_rows

from cancelmark.conformance.schedule import Choose, Schedule, departing, explore_schedules, fifo, record
from cancelmark.model.oracle import judge as judge_history

from .cluster import Cluster, Flaw, Scenario
from .scenarios import DOUBLE, LARGE, SCENARIOS

MAX_STEPS = 60_000


class Run(NamedTuple):
    """One run of a scenario."""

    schedule: Schedule[None]
    cluster: Cluster
    problems: list[str]

    @property
    def departures(self) -> list[tuple[int, int]]:
        """The choices that depart from nothing going wrong: how many were left as they are before, and which one."""
        found, wait = [], 0
        for choice in self.schedule.choices:
            if choice:
                found.append((wait, choice))
                wait = 0
            else:
                wait += 1
        return found

    def __str__(self) -> str:
        return "\n".join([*self.cluster.story, *self.problems, f"again: {self.command}"])

    @property
    def choices(self) -> str:
        return ",".join(f"{wait}:{choice}" for wait, choice in self.departures) or "-"

    @property
    def command(self) -> str:
        """What plays it again."""
        scenario, flaw = self.cluster.scenario, self.cluster.flaw
        calls = f" --calls '{' '.join(map(str, scenario.clients))}'" if scenario.name == LARGE.name else ""
        return (f'make simulate RUN="{scenario.name} --choices {self.choices}{calls}'
                f'{f" --flaw {flaw.name}" if flaw else ""}"')


def read_choices(text: str) -> Choose:
    """From what `Run.choices` says. Raises ValueError."""
    if text == "-":
        return fifo
    try:
        return departing([(int(wait), int(choice)) for wait, _, choice in (
            one.partition(":") for one in text.split(","))])
    except ValueError:
        raise ValueError(f"{text!r} are no choices; give what a failure has printed, as 5:1,0:2") from None


def play(scenario: Scenario, choose: Choose = fifo, flaw: Flaw | None = None) -> Run:
    cluster = Cluster(scenario, flaw)
    schedule = record(cluster.main(), choose, max_steps=MAX_STEPS, in_order=True)
    return Run(schedule, cluster, find_problems(schedule, cluster))


def play_all(scenario: Scenario, flaw: Flaw | None = None, faults: int | None = None, limit: int = 100_000,
             ) -> Iterator[Run]:
    """Every run of the scenario, or those in which at most so many things go wrong."""
    clusters: list[Cluster] = []

    def main() -> Coroutine[Any, Any, None]:
        clusters[:] = [Cluster(scenario, flaw)]
        return clusters[0].main()

    for schedule in explore_schedules(main, limit=limit, preemptions=faults, max_steps=MAX_STEPS, in_order=True):
        yield Run(schedule, clusters[0], find_problems(schedule, clusters[0]))


def find_flaw(flaw: Flaw) -> Run | None:
    """A run in which the flaw shows as it says: with the choices that are known, or else with any single fault, and
    where the scenario is about two, with any two."""
    scenario = SCENARIOS[flaw.scenario]
    known = play(scenario, read_choices(flaw.choices), flaw)
    if shows(flaw, known):
        return known
    runs = play_all(scenario, flaw, faults=2 if scenario in DOUBLE else 1)
    return next((run for run in runs if shows(flaw, run)), None)


def shows(flaw: Flaw, run: Run) -> bool:
    return any(re.search(flaw.breaks, problem) for problem in run.problems)


def find_problems(schedule: Schedule[None], cluster: Cluster) -> list[str]:
    """What is wrong with a run: with what clients were told, with the journal, the rows and the log, and with what
    subscribers have seen."""
    problems = list(cluster.complaints)
    if schedule.error is not None:
        problems.append(f"{type(schedule.error).__name__}: {schedule.error}")
    if not hasattr(cluster, "_server"):
        return problems
    parked = {f"prompt {seq} is queued" for (seq,) in cluster.rows(
        "SELECT seq FROM prompts p JOIN sessions s ON s.id = p.session_id WHERE state = 'queued' AND s.held")}
    problems += [problem.says for problem in judge_rows(cluster.server) if problem.says not in parked]
    problems += [f"{name} was called {cluster.attempts[name]} times, and done {number} times"
                 for name, number in cluster.taken.items()
                 if name in ("cancel", "clear_queue", "stop") and number > cluster.attempts[name]
                 and not cluster.attempts["close"]]  # which cancels as often as it finds something
    problems += judge_history([*cluster.judge_prompts()], cluster.calls)
    stored = {text: seq for seq, text in cluster.texts.items()}
    problems += [f"{text!r} was acknowledged as {seq}, and is {stored.get(text)}"
                 for text, seq in cluster.acknowledged.items() if stored.get(text) != seq]
    problems += [f"{text!r} was accepted as {stored[text]}, and its client is told: {answer}"
                 for text, answer in cluster.refused.items() if text in stored]
    problems += [f"{text!r} has run in {lives} lives, and was started {starts} times"
                 for text, lives, _, starts in cluster.count_lives() if lives > starts]
    problems += [f"{text!r} was started {starts} times, and a node has asked the model the same {repeats} times"
                 for text, _, repeats, starts in cluster.count_lives() if repeats > starts]
    if set(cluster.faults) <= {"the node leaves", "the commit is slow"}:
        problems += [f"{text!r} ended with an error before it ran, though every node left as it should"
                     for text in cluster.list_failed() if not cluster.has_run(text)]
        problems += [f"session {session} was recovered, though every node left as it should" for (session,) in
                     cluster.rows("SELECT DISTINCT session_id FROM steps WHERE claim = 'recover'")]
    if set(cluster.faults) <= {"the database is away"}:
        problems += [f"node {url} was declared dead, though only the database was away" for (url,) in
                     cluster.rows("SELECT id FROM nodes WHERE dead")]
    places = [place for (place,) in cluster.rows("SELECT place FROM events ORDER BY place")]
    if cluster.scenario.roams and cluster.seen != places:
        problems.append(f"the roaming subscriber has seen {cluster.seen}, and the log has {places}")
    return problems
