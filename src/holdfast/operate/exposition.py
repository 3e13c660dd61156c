"""Metrics in Prometheus' text format.

Only this module imports prometheus_client, which takes about 1.5 MB and 30 ms. The first scrape imports it, on that
scrape's thread.
"""

from collections.abc import Iterable, Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import generate_latest
from prometheus_client.process_collector import PROCESS_COLLECTOR
from prometheus_client.registry import Collector

from holdfast.core.counters import Distribution
from holdfast.operate.metrics import MetricReading


def expose(readings: Iterable[MetricReading]) -> bytes:
    return generate_latest(_Collector(readings))


class _Collector(Collector):
    def __init__(self, readings: Iterable[MetricReading]) -> None:
        self._readings = readings

    def collect(self) -> Iterator[Metric]:
        for reading in self._readings:
            yield _family(reading)
        yield from PROCESS_COLLECTOR.collect()


def _family(reading: MetricReading) -> Metric:
    metric, value = reading
    if isinstance(value, Distribution):
        return HistogramMetricFamily(metric.name, metric.help, buckets=_buckets(value), sum_value=value.total)
    family_of = CounterMetricFamily if metric.name.endswith("_total") else GaugeMetricFamily
    family = family_of(metric.name, metric.help, labels=metric.labels)
    samples = value if isinstance(value, dict) else {} if value is None else {(): value}
    for labels, number in samples.items():
        family.add_metric(labels, number)
    return family


def _buckets(distribution: Distribution) -> list[tuple[str, float]]:
    """Cumulative counts: each bucket includes all smaller ones."""
    buckets, count = [], 0
    for bound, here in zip((*map(str, distribution.bounds), "+Inf"), distribution.counts, strict=True):
        count += here
        buckets.append((bound, float(count)))
    return buckets
