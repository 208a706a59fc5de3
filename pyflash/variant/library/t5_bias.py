"""The bias of T5: weight[bucket, h], where bucket[d + reach] is the bucket of the distance
d = k - p, kept between -reach and reach.
"""

from __future__ import annotations

from pyflash.variant.pair import Pair
from pyflash.variant.tiles import Problem

SOURCE = "Raffel et al., arXiv 1910.10683"
TEXT = (
    "t5_bias(bucket: i32[1], weight: f32[2], reach: i32): "
    "s + weight[bucket[clamp(k - q - k_len + q_len, -reach, reach) + reach], h]"
)


def example(problem: Problem) -> dict[str, object]:
    reach = 5
    bucket = [abs(d) if d <= 0 else 3 + min(d, 2) for d in range(-2, 3)]
    near = [bucket[min(max(d, -2), 2) + 2] for d in range(-reach, reach + 1)]
    weight = [[(3 * i + h) / 4 for h in range(problem.heads)] for i in range(6)]
    return {"bucket": near, "weight": weight, "reach": reach}


def reference(at: Pair, bucket: list[int], weight: list[list[float]], reach: int) -> float | None:
    distance = min(max(at.k - at.position, -reach), reach)
    return at.s + weight[bucket[distance + reach]][at.h]
