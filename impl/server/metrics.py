"""Prometheus metrics: requests, and the current state of the open workspaces."""

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from cancelmark.model.lifecycle import Outcome

from ..runtime.workspace import Workspaces

BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0)


class Metrics:
    """The metrics of one server."""

    def __init__(self, workspaces: Workspaces) -> None:
        self._registry = CollectorRegistry()
        self._registry.register(WorkspaceCollector(workspaces))
        self.requests = Counter("cancelmark_requests", "Requests by call and status",
                                ["method", "call", "status"], registry=self._registry)
        self.seconds = Histogram("cancelmark_request_seconds", "Response time, without event streams",
                                 registry=self._registry, buckets=BUCKETS)

    def text(self) -> bytes:
        return generate_latest(self._registry)


class WorkspaceCollector(Collector):
    """Metrics that are computed on each scrape."""

    def __init__(self, workspaces: Workspaces) -> None:
        self._workspaces = workspaces

    def collect(self) -> Iterator[Metric]:
        open_now = list(self._workspaces)
        brokers = [workspace.runtime.broker.statistics() for workspace in open_now]
        unfinished = sum(workspace.runtime.unfinished() for workspace in open_now)
        yield GaugeMetricFamily("cancelmark_workspaces", "Open workspaces", len(open_now))
        yield GaugeMetricFamily("cancelmark_sessions", "Sessions of the open workspaces",
                                sum(workspace.number_of_sessions for workspace in open_now))
        yield GaugeMetricFamily("cancelmark_prompts_unfinished", "Unfinished prompts", unfinished)
        ended = CounterMetricFamily("cancelmark_prompts_ended", "Finished prompts of the open workspaces, by outcome",
                                    labels=["outcome"])
        for outcome in Outcome:
            ended.add_metric([outcome.value], sum(workspace.runtime.ended[outcome] for workspace in open_now))
        yield ended
        yield GaugeMetricFamily("cancelmark_streams", "Open event streams",
                                sum(workspace.attached for workspace in open_now))
        for name, (told, value) in self._workspaces.figures().items():
            yield GaugeMetricFamily(f"cancelmark_node_{name}", told, value)
        yield CounterMetricFamily("cancelmark_updates_published", "Updates published in the open workspaces",
                                  sum(broker.published for broker in brokers))
        yield CounterMetricFamily("cancelmark_updates_skipped", "Updates skipped for slow readers",
                                  sum(broker.skipped for broker in brokers))
