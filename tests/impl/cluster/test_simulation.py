"""Whole clusters in one deterministic loop: production nodes, a simulated database, and a chooser that lets them fail.

Small scenarios are played with every single fault at every moment, large ones at random. Of each error that is known to
break a cluster it is shown that these runs find it."""

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.budget import DEEP, effort, long
from support.simulation.cluster import Do, Flaw
from support.simulation.flaws import FLAWS
from support.simulation.playing import find_flaw, play, play_all, read_choices, shows
from support.simulation.scenarios import DOUBLE, LARGE, SCENARIOS, SMALL
from tools.simulate import main

from cancelmark.conformance.schedule import departing

QUICK, LONG = ("cancel", "echo", "held"), ("unanswered",)  # the others take longer

CALLS = ("cancel", "clear_queue", "hold", "resume", "revoke", "replace", "next", "stop")
TURNS = ("says", "says", "waits", "works", "grows")
PLACES = st.sampled_from(LARGE.nodes), st.integers(0, 40).map(lambda tenths: tenths / 10)
ACCEPTS = st.builds(Do, st.just("accept"), *PLACES, st.sampled_from(TURNS), session=st.sampled_from("sst"),
                    named=st.sampled_from([True, True, False]))
OTHERS = st.builds(Do, st.sampled_from(CALLS), *PLACES, of=st.integers(1, 4), session=st.sampled_from("sst"))
CLIENTS = st.tuples(st.lists(ACCEPTS, min_size=1, max_size=4), st.lists(OTHERS, max_size=4)).map(
    lambda drawn: [*drawn[0], *drawn[1], *(Do("resume", at=9.0, session=session) for session in LARGE.sessions)])
DEPARTURES = st.lists(st.tuples(st.integers(0, 12), st.integers(1, 12)), max_size=8)


@pytest.mark.parametrize("name", [
    long(s.name) if s.name in LONG else s.name for s in (*SMALL, *DOUBLE) if DEEP or s.name in (*QUICK, *LONG)])
def test_nothing_is_lost_whichever_fault_strikes_and_wherever(name: str) -> None:
    scenario, runs = SCENARIOS[name], 0
    for run in play_all(scenario, faults=2 if scenario in DOUBLE else 1):
        assert not run.problems, run
        runs += 1
    assert runs > 10 or not any(vars(scenario.faults).values())


@given(CLIENTS, DEPARTURES)
@settings(max_examples=effort(10, 25), deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_nothing_is_lost_in_large_clusters_with_many_faults(clients: list[Do], departures: list[tuple[int, int]],
                                                            ) -> None:
    run = play(replace(LARGE, clients=clients), departing(departures))
    assert not run.problems, run


@given(st.sampled_from([s.name for s in SMALL]), DEPARTURES)
@settings(max_examples=effort(10, 25), deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_nothing_is_lost_when_several_faults_come_together(name: str, departures: list[tuple[int, int]]) -> None:
    run = play(SCENARIOS[name], departing(departures))
    assert not run.problems, run


@pytest.mark.parametrize("flaw", FLAWS, ids=lambda flaw: flaw.name)
def test_every_known_error_is_found(flaw: Flaw) -> None:
    run = find_flaw(flaw)
    assert run is not None, f"nobody has noticed that {flaw.says}"
    assert shows(flaw, run), run
    assert not play(SCENARIOS[flaw.scenario], read_choices(run.choices)).problems, "it is the error that is found"


def test_calls_that_come_together_are_compared_though_they_find_nothing_to_do() -> None:
    """At a node that has heard of neither prompt, one loads the session while the other is taken on what was known."""
    calls = "accept@b+2.1/t:waits accept@b+2.1/t:waits clear_queue@a+3.1/t clear_queue@a+3.1/t"
    run = play(replace(LARGE, clients=[Do.read(call) for call in calls.split()]), departing([]))
    assert not run.problems, run


def test_a_stop_may_reach_a_prompt_that_is_accepted_before_the_stop_returns() -> None:
    calls = "accept@a+0/s:waits stop@b+0/s"
    run = play(replace(LARGE, clients=[Do.read(call) for call in calls.split()]), departing([]))
    assert not run.problems, run


def test_whoever_waits_in_a_lane_is_told_when_the_event_loop_ends() -> None:
    """A turn outlasts the request to end until what it asked for is carried out, which nobody did any more."""
    calls = "accept@c+2.4/s:works! accept@c+1.8/s:works resume@a+9/s resume@a+9/t"
    clients = [Do.read(call) for call in calls.split()]
    run = play(replace(LARGE, clients=clients), read_choices("6:7,12:1,4:7"))
    assert not run.problems, run


def test_the_same_choices_give_the_same_run() -> None:
    first, second = (play(SCENARIOS["family"], read_choices("9:3,4:2")) for _ in range(2))
    assert first.cluster.faults
    assert first.cluster.story == second.cluster.story
    assert first.schedule.choices == second.schedule.choices


def test_a_failure_is_played_again_by_the_command_that_it_prints(capsys: pytest.CaptureFixture[str]) -> None:
    flaw = next(flaw for flaw in FLAWS if flaw.name == "message-unfenced")
    run = find_flaw(flaw)
    assert run
    words = run.command.partition('RUN="')[2].rstrip('"').split()
    assert main(words) == 1
    assert capsys.readouterr().out == f"{run}\n"


def test_calls_are_read_as_they_are_written() -> None:
    for do in (call for scenario in SMALL for call in scenario.clients):
        assert Do.read(str(do)) == do
    with pytest.raises(ValueError, match="is no call"):
        Do.read("cancel")
