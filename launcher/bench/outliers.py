"""Which host or link is slow among the others. Pure.

Judged by medians, and by how far values lie apart anyway, so that neither one bad host nor a noisy machine makes the
others look bad. A host is slow in a thing when it lies far below the median. Of links: a host is slow when even its
best link is slow; a link is slow when both of its hosts have much better ones.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from launcher.bench.findings import Finding, by_host, links

# Less than this part below the others is not worth a word, and of two hosts nobody knows which one is usual.
LEAST_BELOW = 0.25
LEAST_BELOW_OF_TWO = 0.4
LEAST_BELOW_OF_LINKS = 0.4
# Median absolute deviations, scaled to standard deviations of a normal distribution, that are usual.
USUAL_DEVIATIONS = 4.0
SCALE = 1.4826
# Latencies vary more: so many times the others', and so much more, at least.
LATENCY_TIMES = 3.0
LATENCY_MORE_S = 2e-4


@dataclass(frozen=True)
class Outlier:
    """A host, or a pair of them, that is slow in one thing. value, usual: per second; of a latency, seconds."""

    hosts: tuple[str, ...]
    what: str
    where: str
    value: float
    usual: float


def outliers(found: Sequence[Finding]) -> list[Outlier]:
    """All there are, hosts first."""
    of_hosts = [
        Outlier((host,), what, where, values[host], usual)
        for (what, where), values in by_host(found).items()
        for host, usual in slow(values).items()
    ]
    rates = {pair: 1 / seconds for pair, seconds in links(found, empty=False).items()}
    latencies = links(found, empty=True)
    return [*of_hosts, *_of_links(rates), *_of_latencies(latencies)]


def slow(rates: Mapping[str, float]) -> dict[str, float]:
    """Those far below the others, with what is usual."""
    if len(rates) < 2:
        return {}
    values = list(rates.values())
    if len(rates) == 2:
        usual, below = max(values), LEAST_BELOW_OF_TWO
    else:
        usual = median(values)
        apart = SCALE * median(abs(value - usual) for value in values) / usual
        below = max(LEAST_BELOW, USUAL_DEVIATIONS * apart)
    return {name: usual for name, value in rates.items() if value < (1 - below) * usual}


def _of_links(rates: Mapping[tuple[str, str], float]) -> list[Outlier]:
    """Of two hosts there is one link, and nothing to compare it with."""
    if len(rates) < 2:
        return []
    best = _best(rates, max)
    hosts = slow(best)
    found = [Outlier((host,), "link", "rate", best[host], usual) for host, usual in hosts.items()]
    for pair, rate in rates.items():
        usual = min(best[pair[0]], best[pair[1]])
        if not hosts.keys() & set(pair) and rate < (1 - LEAST_BELOW_OF_LINKS) * usual:
            found.append(Outlier(pair, "link", "rate", rate, usual))
    return found


def _of_latencies(seconds: Mapping[tuple[str, str], float]) -> list[Outlier]:
    if len(seconds) < 2:
        return []
    best = _best(seconds, min)
    usual = median(best.values())
    hosts = [host for host, value in best.items() if _is_late(value, usual)]
    found = [Outlier((host,), "link", "latency", best[host], usual) for host in hosts]
    for pair, value in seconds.items():
        usual = max(best[pair[0]], best[pair[1]])
        if not set(hosts) & set(pair) and _is_late(value, usual):
            found.append(Outlier(pair, "link", "latency", value, usual))
    return found


def _is_late(seconds: float, usual: float) -> bool:
    return seconds > LATENCY_TIMES * usual and seconds > usual + LATENCY_MORE_S


def _best(
    values: Mapping[tuple[str, str], float], better: Callable[[float, float], float]
) -> dict[str, float]:
    found: dict[str, float] = {}
    for pair, value in values.items():
        for host in pair:
            found[host] = better(found.get(host, value), value)
    return found
