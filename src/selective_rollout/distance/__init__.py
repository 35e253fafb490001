"""How far the prefixes of one group have diverged: mean pairwise normalised edit distance.

`mean_pairwise_distance` and `should_stop_group` look once at finished prefixes; `GroupDistance` follows a
group while it runs and answers "is the mean below tau?" exactly, mostly without computing an edit distance.
`distance.reference` says the same in textbook form and is what the fast path is tested against.
"""

from selective_rollout.distance.group import GroupDistance
from selective_rollout.distance.stateless import mean_pairwise_distance, should_stop_group

__all__ = ["GroupDistance", "mean_pairwise_distance", "should_stop_group"]
