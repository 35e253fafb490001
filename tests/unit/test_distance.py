import pickle
import random
from array import array
from fractions import Fraction
from functools import reduce
from itertools import repeat
from operator import add

import pytest
from rapidfuzz.distance import Levenshtein

from selective_rollout.distance import GroupDistance, mean_pairwise_distance, should_stop_group
from selective_rollout.distance.curve import prefix_distances
from selective_rollout.distance.reference import edit_distance, mean_distance
from selective_rollout.distance.symbols import END_CODE, SymbolTable
from selective_rollout.errors import ConfigError, GroupError
from selective_rollout.types import END

NAN = float("nan")


class TestMeanPairwiseDistance:
    def test_identical_texts_are_at_distance_zero(self):
        assert mean_pairwise_distance(["search(query)"] * 3) == 0.0

    def test_unlike_texts_are_far_apart(self):
        assert mean_pairwise_distance(["search(query)", "lookup(item)", "finish(answer)"]) > 0.5

    def test_a_pair_is_divided_by_its_longer_member(self):
        assert mean_pairwise_distance(["abc", "a"]) == 2 / 3

    def test_sequences_compare_whole_actions(self):
        assert mean_pairwise_distance([["go north", "look"], ["go north", "loop"]]) == 0.5

    def test_mean_is_taken_over_pairs(self):
        assert mean_pairwise_distance([["a"], ["a"], ["b"]]) == 2 / 3

    def test_two_empty_prefixes_agree(self):
        assert mean_pairwise_distance([[], []]) == 0.0
        assert mean_pairwise_distance([[], ["a"]]) == 1.0

    def test_one_prefix_has_nobody_to_agree_with(self):
        assert mean_pairwise_distance(["abc"]) == 1.0

    @pytest.mark.parametrize("longest", range(40, 50))
    def test_many_denominators_are_still_rounded_once(self, longest):
        rows = ["a" * length for length in range(1, longest)]
        assert mean_pairwise_distance(rows) == float(mean_distance(rows, longest, "none"))

    def test_prefixes_may_come_from_a_generator(self):
        assert mean_pairwise_distance(iter([["a"], ["b"]])) == 1.0

    @pytest.mark.parametrize(
        ("left", "right"),
        [
            (-1, -2),
            ("", 0),
            ("a", 97),
            (b"a", "a"),
            (0, 2**61 - 1),
            (512, 2**70),
            ([1], (1,)),
            (NAN, float("nan")),
        ],
    )
    def test_different_symbols_with_equal_hashes_differ(self, left, right):
        assert mean_pairwise_distance([[left], [right]]) == 1.0

    @pytest.mark.parametrize(
        ("left", "right"),
        [
            (1, 1.0),
            (1, True),
            (NAN, NAN),
            ({"a": 1, "b": [2]}, {"b": [2.0], "a": True}),
            ([1, {"x": {3}}], [1, {"x": frozenset({3})}]),
            ((1, [2]), (1, [2])),
            (bytearray(b"a"), b"a"),
        ],
    )
    def test_equal_symbols_agree_whatever_their_type(self, left, right):
        assert mean_pairwise_distance([[left], [right]]) == 0.0

    def test_lone_surrogates_are_symbols_like_any_other(self):
        assert mean_pairwise_distance(["\ud800", "\udfff"]) == 1.0
        assert mean_pairwise_distance([["\ud800"], ["\ud800"]]) == 0.0

    def test_long_texts(self):
        text = "open the next door. " * 2500
        assert mean_pairwise_distance([text, text[:-1] + "!"]) == 1 / 50_000

    @pytest.mark.parametrize(
        ("prefixes", "message"),
        [
            ([], "is empty"),
            ("abc", "one string"),
            (["abc", ["a"]], "mix strings"),
            ([["a"], ["a", END]], "END is not a symbol"),
            ([["a"], [{"call": [array("i")]}]], "type array is unhashable"),
        ],
    )
    def test_bad_prefixes_are_refused(self, prefixes, message):
        with pytest.raises(ConfigError, match=message):
            mean_pairwise_distance(prefixes)
        with pytest.raises(ConfigError, match=message):
            should_stop_group(prefixes)


class TestShouldStopGroup:
    def test_identical_prefixes_stop(self):
        assert should_stop_group(["search(query)"] * 3)

    def test_unlike_prefixes_go_on(self):
        assert not should_stop_group(["search(query)", "lookup(item)", "finish(answer)"])

    def test_tau_is_strict(self):
        prefixes = [["a"] * 9 + ["b"], ["a"] * 10]
        assert not should_stop_group(prefixes, tau=0.1)
        assert should_stop_group(prefixes, tau=0.11)

    def test_a_mean_equal_to_tau_does_not_stop_though_its_float_sum_is_below(self):
        same, other = ["a"] * 10, ["a"] * 9 + ["b"]
        prefixes = [other, other, same, same, same, same]
        terms = [Levenshtein.distance(a, b) / 10 for i, a in enumerate(prefixes) for b in prefixes[:i]]
        tau = float(Fraction(8, 150))
        assert reduce(add, terms) / len(terms) < tau, "plain additions; `sum` compensates from Python 3.12 on"
        assert not should_stop_group(prefixes, tau)

    @pytest.mark.parametrize("tau", [0.05, 1.0])
    def test_one_member_never_stops(self, tau):
        assert not should_stop_group(["abc"], tau)

    def test_tau_zero_never_stops(self):
        assert not should_stop_group(["abc", "abc"], tau=0)

    @pytest.mark.parametrize("prefixes", [["", ""], [[], [], []], [["", ""], ["", ""]]])
    def test_nobody_acted_never_stops(self, prefixes):
        assert not should_stop_group(prefixes, tau=1.0)

    @pytest.mark.parametrize("tau", [NAN, -0.1, 1.1, float("inf")])
    def test_tau_outside_its_range_is_refused(self, tau):
        with pytest.raises(ConfigError, match="from 0 to 1"):
            should_stop_group(["a", "a"], tau)
        with pytest.raises(ConfigError, match="from 0 to 1"):
            GroupDistance(2).decide(tau)
        with pytest.raises(ConfigError, match="from 0 to 1"):
            GroupDistance(2).earliest_fire(tau)


class TestSymbolTable:
    def test_codes_are_distinct_and_skip_surrogates_and_the_end(self):
        codes = SymbolTable().encode(range(70_000))
        assert len(set(codes)) == 70_000
        assert END_CODE not in codes
        codes.encode("utf-8")

    def test_a_container_is_remembered_as_it_was(self):
        table, action = SymbolTable(), ["look"]
        code = table.code(action)
        action.append("around")
        assert table.code(["look"]) == code != table.code(action)

    def test_frozen_containers_cannot_be_forged(self):
        table = SymbolTable()
        assert len(set(table.encode([[1], (1,), (list, (1,)), {1: 2}, ((1, 2),), frozenset({(1, 2)})]))) == 6

    def test_running_out_of_codes_is_an_error(self):
        table = SymbolTable(zip(range(1_112_063), repeat("x")))
        with pytest.raises(ConfigError, match="distinct symbols"):
            table.code("one more")


class TestPositions:
    def test_nothing_is_defined_before_the_first_step(self):
        group = GroupDistance(3)
        assert (group.position, group.mean, group.bounds(), group.curve()) == (0, None, (0.0, 1.0), [])
        assert not group.decide(1.0)

    def test_append_moves_everybody_one_step(self):
        group = GroupDistance(2)
        group.append(["look", "look"])
        assert (group.position, group.mean) == (1, 0.0)
        group.append(["look", "go"])
        assert (group.position, group.mean) == (2, 0.5)

    def test_append_takes_end_for_whoever_ended(self):
        group = GroupDistance(3)
        group.append(["a", "b", "c"])
        group.drop(0)
        group.append([END, END, "c"])
        group.append([END, END, "c"])
        assert (group.members, group.running, group.position) == ((1, 2), (2,), 3)

    def test_extend_compares_at_the_slowest_running_member(self):
        group = GroupDistance(3)
        group.extend(["abcd", "ab", "abx"])
        assert (group.position, group.mean) == (2, 0.0)
        group.extend(["", "cd", ""])
        assert (group.position, group.mean) == (3, pytest.approx(2 / 9))
        group.finish(2)
        assert group.position == 3
        group.extend(["", "", ""])
        assert group.position == 4

    def test_position_goes_to_the_longest_row_once_all_have_finished(self):
        group = GroupDistance(2)
        group.extend(["a", ""])
        group.finish(0)
        group.finish(1)
        group.extend(["", ""])
        assert (group.position, group.mean) == (1, 1.0)

    def test_push_waits_for_advance_to(self):
        group = GroupDistance(2)
        for symbol in "abc":
            group.push(0, symbol)
        group.push(1, "a")
        assert group.position == 0
        group.advance_to(1)
        assert (group.mean, group.running) == (0.0, (0, 1))
        group.finish(1)
        group.advance_to(3)
        assert (group.mean, group.running) == (2 / 3, (0,))

    def test_a_finished_member_runs_at_positions_before_its_end(self):
        group = GroupDistance(2)
        for member, symbol in [(0, "a"), (0, "b"), (1, "a"), (1, "b")]:
            group.push(member, symbol)
        group.finish(0)
        group.advance_to(1)
        assert group.running == (0, 1)
        group.advance_to(2)
        assert group.running == (1,)

    def test_a_rejected_call_changes_nothing(self):
        group = GroupDistance(2)
        group.append(["a", "b"])
        group.finish(1)
        for call in (lambda: group.append(["a", "b"]), lambda: group.extend(["aa", "b"])):
            with pytest.raises(GroupError):
                call()
        assert (group.position, group.running) == (1, (0,))
        group.append(["a", END])
        assert group.position == 2

    @pytest.mark.parametrize(
        ("call", "message"),
        [
            (lambda g: g.push(7, "a"), "member 7 is not in this group: members are 0 to 2"),
            (lambda g: g.push(1, "a"), "member 1 has finished"),
            (lambda g: g.finish(1), "member 1 has finished"),
            (lambda g: g.push(2, "a"), "member 2 was dropped"),
            (lambda g: g.drop(2), "member 2 was dropped"),
            (lambda g: g.append(["a"]), "1 entries for a group of size 3"),
            (lambda g: g.extend([["a"]] * 3), "member 1 has finished"),
            (lambda g: g.advance_to(0), "behind position 1"),
            (lambda g: g.advance_to(9), "member 0 has 1 of 9 symbols"),
        ],
    )
    def test_impossible_calls_are_refused(self, call, message):
        group = GroupDistance(3)
        group.append("aaa")
        group.finish(1)
        group.drop(2)
        with pytest.raises(GroupError, match=message):
            call(group)

    def test_bad_settings_are_refused(self):
        with pytest.raises(ConfigError, match="at least 1"):
            GroupDistance(0)
        with pytest.raises(ConfigError, match="padding is 'truncate'"):
            GroupDistance(2, padding="truncate")
        with pytest.raises(ConfigError, match="finish"):
            GroupDistance(2).push(0, END)


class TestMetric:
    def test_end_padding_counts_the_end_as_agreement(self):
        group = GroupDistance(2)
        group.append(["take", "drop"])
        group.append([END, END])
        assert group.mean == 1.0
        group.advance_to(10)
        assert group.mean == 0.1

    def test_without_padding_the_end_never_enters(self):
        group = GroupDistance(2, padding="none")
        group.append(["take", "drop"])
        group.append([END, END])
        group.advance_to(10)
        assert group.mean == 1.0

    def test_one_member_never_fires(self):
        group = GroupDistance(1)
        group.append(["a"])
        assert (group.mean, group.earliest_fire(1.0)) == (None, None)
        assert not group.decide(1.0)

    def test_ties_do_not_fire(self):
        for padding in ("end", "none"):
            group = GroupDistance(2, padding)
            group.extend(["aaaaaaaaab", "aaaaaaaaaa"])
            assert not group.decide(0.1)
            assert group.decide(0.1000001)

    def test_dropping_the_odd_one_out_makes_the_rest_agree(self):
        group = GroupDistance(3)
        for _ in range(20):
            group.append(["a", "a", "b"])
            assert not group.decide(0.12)
        group.drop(2)
        assert group.decide(0.12)
        assert group.mean == 0.0

    def test_dropping_forgets_the_mean_of_rows_of_different_lengths(self):
        group = GroupDistance(3, padding="none")
        group.append(["a", "a", "b"])
        group.append([END, "a", "b"])
        assert group.mean == pytest.approx((1 / 2 + 1 + 1) / 3)
        group.drop(2)
        assert group.mean == 1 / 2

    def test_bounds_and_earliest_fire_need_no_edit_distance(self):
        group = GroupDistance(4)
        group.extend(["abcdefgh", "abcdefgh", "abcdefgx", "abxdefgh"])
        lo, hi = group.bounds()
        assert group.earliest_fire(0.12) == group.position
        assert group.evaluations == 0
        assert lo <= group.mean <= hi

    def test_upper_bound_counts_the_pairs_that_differ_in_each_column(self):
        group = GroupDistance(3)
        group.extend(["aaab", "aaba", "aabc"])
        for _ in range(2):
            assert group.bounds() == (0.0, (2 + 3) / (3 * 4))

    @pytest.mark.parametrize("tau", [0.1, 0.2, 0.24, 0.25, 0.26])
    def test_one_stranger_among_many_is_measured_to_the_end(self, tau):
        group = GroupDistance(8)
        group.extend(["a" * 200] * 7 + ["b" * 200])
        assert group.decide(tau) == (tau > 0.25)

    def test_earliest_fire_follows_from_the_last_look(self):
        group = GroupDistance(2)
        group.append("ab")
        assert group.mean == 1.0
        assert group.earliest_fire(0.1) == 11
        assert group.earliest_fire(0.0) is None
        assert group.earliest_fire(5e-324) is None
        assert group.earliest_fire(1.0) == 2

    def test_earliest_fire_without_padding_rules_out_the_present_only(self):
        group = GroupDistance(2, padding="none")
        group.append("ab")
        assert group.earliest_fire(0.1) == 1
        assert not group.decide(0.1)
        assert group.earliest_fire(0.1) == 2

    def test_curve_is_the_history_of_the_mean(self):
        for padding in ("end", "none"):
            group = GroupDistance(3, padding)
            means = []
            for step in ["aaa", "aba", ["c", END, "a"], ["a", END, "a"]]:
                group.append(step)
                means.append(group.mean)
            assert group.curve() == means

    def test_state_survives_pickling(self):
        group = GroupDistance(3)
        group.extend([["a", {"tool": [1]}], ["a", NAN], ["a", "b"]])
        group.finish(2)
        assert not group.decide(0.3)
        copy = pickle.loads(pickle.dumps(group))
        for each in (group, copy):
            each.append([{"tool": [1]}, {"tool": [1.0]}, END])
        assert (copy.mean, copy.bounds(), copy.running) == (group.mean, group.bounds(), group.running)
        assert copy.mean == 5 / 9

    def test_long_texts(self):
        text = "open the next door. " * 2500
        group = GroupDistance(3)
        group.extend([text, "x" + text[:-1], text])
        assert group.decide(0.05)
        assert group.mean == pytest.approx(2 * 2 / 3 / 50_000)


class TestReference:
    def test_edit_distance_by_hand(self):
        assert edit_distance("kitten", "sitting") == 3
        assert edit_distance([], ["a", "b"]) == 2
        assert edit_distance([NAN], [NAN]) == 0

    def test_mean_is_an_exact_fraction(self):
        rows = [["a", "b"], ["a"], ["a", "c", "d"]]
        assert mean_distance(rows, 3, "end") == Fraction(1 + 2 + 2, 9)
        assert mean_distance(rows, 3, "none") == (Fraction(1, 2) + Fraction(2, 3) + Fraction(2, 3)) / 3
        assert mean_distance(rows, 0, "end") is None
        assert mean_distance(rows[:1], 1, "end") is None

    def test_prefix_distances_by_hand(self):
        assert prefix_distances("abc", "xbcde", 6) == [1, 1, 1, 2, 3, 3]
        assert prefix_distances("", "ab", 3) == [1, 2, 2]


def synthetic_group(kind, size, length, seed):
    """Rows over 40 actions with Zipf frequencies: "diverged" drawn apart, "half" every second one edited."""
    rng = random.Random(f"{kind} {size} {length} {seed}")
    actions = [f"take object {i} from shelf {i % 7}" for i in range(40)]
    weights = [1 / rank for rank in range(1, 41)]

    def draw():
        return rng.choices(actions, weights, k=length)

    if kind == "diverged":
        return [draw() for _ in range(size)]
    reference = draw()
    shares = [0.5 if member % 2 else 0.01 for member in range(size)]
    return [
        [new if rng.random() < share else old for old, new in zip(reference, draw(), strict=True)]
        for share in shares
    ]


@pytest.mark.parametrize(
    ("kind", "length", "most"),
    [("diverged", 100, 60), ("half", 100, 90), ("diverged", 500, 120)],
)
@pytest.mark.parametrize("seed", range(3))
def test_deciding_every_step_takes_few_edit_distances(kind, length, most, seed):
    rows = synthetic_group(kind, 8, length, seed)
    group = GroupDistance(8)
    for step in zip(*rows, strict=True):
        group.append(step)
        group.decide(0.12)
    assert 0 < group.evaluations <= most
