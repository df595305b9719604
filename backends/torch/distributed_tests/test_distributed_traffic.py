"""What ranks send and hold is what the formulas say, and does not grow with Q x K."""

from __future__ import annotations

import sys

import group_traffic as traffic  # type: ignore[import-not-found]
import pytest

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the counters are those of Linux")

SENDS = [(how, kind) for how in traffic.WAYS for kind in traffic.KINDS]
QUICK = [("ring", "gradient"), ("all_to_all", "forward")]
AGREEMENT = 20_000  # bytes, at most, in which ranks tell each other what they were given


@pytest.mark.parametrize(
    ("how", "kind"), [x if x in QUICK else pytest.param(*x, marks=pytest.mark.slow) for x in SENDS]
)
def test_a_rank_sends_and_holds_what_the_formulas_say(how: str, kind: str) -> None:
    """Shapes in which every axis is another; split_keys has few queries, as it is meant for."""
    n = 3
    sizes = traffic.Sizes(n, Q=17 if how == "split_keys" else 3 * 1024, K=3 * 2048, H=6, G=3, D=40, E=24, B=2)
    ranks = traffic.measured(how, kind, sizes)
    counted = sum(bytes_sent for bytes_sent, _ in ranks) / n
    assert traffic.sent(how, kind, sizes) <= counted <= 1.002 * traffic.sent(how, kind, sizes) + AGREEMENT
    most = traffic.held(how, kind, sizes)
    assert most is None or max(grown for _, grown in ranks) <= most


def test_memory_of_a_rank_is_far_from_that_of_its_scores() -> None:
    sizes = traffic.Sizes(2, Q=8192, K=8192, H=4, G=2, D=16, E=8)
    scores = sizes.rows * sizes.K * sizes.wide
    assert max(grown for _, grown in traffic.measured("ring", "gradient", sizes)) < scores / 4
