"""Inputs that trip people up in practice: what must count as the same action, group or reward."""

import math
from typing import Any

import pytest

from selective_rollout.actions import ActionOptions, canonicalise, from_message, from_messages
from selective_rollout.errors import RewardError
from selective_rollout.rewards import centred, group_label, last_attempts, parse_reward, zero_variance
from selective_rollout.stats import clopper_pearson, fixed_sequence, needed_zero_false, upper_bound
from selective_rollout.types import Group, Rollout, RolloutFailure, RolloutStatus, Step


def calling(*calls: tuple[str, str, str]) -> dict[str, Any]:
    """A tool-only assistant message of (id, name, arguments) calls."""
    listed = [
        {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}
        for call_id, name, arguments in calls
    ]
    return {"role": "assistant", "content": None, "tool_calls": listed}


def group(*rollouts: Rollout, group_id: str = "g", size: int | None = None) -> Group:
    return Group(id=group_id, size=len(rollouts) if size is None else size, rollouts=rollouts, task_id="t")


def finished(index: int, reward: float | None) -> Rollout:
    return Rollout(index=index, status=RolloutStatus.FINISHED, reward=reward)


class TestSameAction:
    def test_argument_keys_in_another_order(self) -> None:
        one = [
            '{"tool":"search","args":{"q":"red mug","page":1}}',
            '{"tool":"open","args":{"id":7,"tab":"new"}}',
        ]
        two = [
            '{"args":{"page":1,"q":"red mug"},"tool":"search"}',
            '{"args":{"tab":"new","id":7},"tool":"open"}',
        ]
        assert one != two
        assert [canonicalise(action) for action in one] == [canonicalise(action) for action in two]

    def test_formatting_is_not_behaviour(self) -> None:
        spellings = ['{"path": "a.txt"}', '{"path":"a.txt"}', '{ "path" : "a.txt" }']
        assert {canonicalise(action) for action in spellings} == {'{"path":"a.txt"}'}

    def test_number_forms_agree_on_request_but_a_string_never_does(self) -> None:
        options = ActionOptions(numeric_equal=True)
        one, float_one, text_one = (canonicalise(f'{{"n":{n}}}', options) for n in ("1", "1.0", '"1"'))
        assert one == float_one != text_one

    def test_fresh_ids_and_times_agree_only_when_scrubbed(self) -> None:
        first = 'run(job="3f0c2a9e-7b1d-4c55-9a10-1d2e3f405162", at="2026-03-01T09:00:01Z")'
        second = 'run(job="b81d77aa-0c9e-4f0b-8f66-aa55bb66cc77", at="2026-03-01T09:00:04Z")'
        assert canonicalise(first) != canonicalise(second)
        options = ActionOptions(scrub_volatile=True)
        assert canonicalise(first, options) == canonicalise(second, options)

    def test_free_text_arguments_are_ignored_per_tool_only(self) -> None:
        first = '{"tool":"web","args":{"q":"hotels oslo","k":5}}'
        second = '{"tool":"web","args":{"q":"Oslo hotels cheap","k":5}}'
        assert canonicalise(first) != canonicalise(second)
        web = ActionOptions(ignore_args={"web": ["q"]})
        assert canonicalise(first, web) == canonicalise(second, web)
        other = ActionOptions(ignore_args={"mail": ["q"]})
        assert canonicalise(first, other) != canonicalise(second, other)

    def test_null_content_beside_a_call(self) -> None:
        messages = [calling(("c1", "look", '{"at":"desk"}')), calling(("c9", "look", '{"at":"desk"}'))]
        actions = from_messages(messages)
        assert actions == ['look({"at":"desk"})'] * 2
        assert "None" not in "".join(actions)

    def test_parallel_calls_are_one_step_in_any_order(self) -> None:
        weather, games = ("c1", "weather", '{"c":"LA"}'), ("c2", "games", '{"c":"LA"}')
        forth, back = from_messages([calling(weather, games)]), from_messages([calling(games, weather)])
        apart = from_messages([calling(weather), calling(games)])
        assert forth == back
        assert len(forth) == 1
        assert len(apart) == 2

    def test_a_replayed_step_and_a_real_repeat(self) -> None:
        messages = [calling((call_id, "pay", '{"id":4}')) for call_id in ("c1", "c1", "c2")]
        assert from_messages(messages) == ['pay({"id":4})'] * 2

    def test_a_step_is_an_agent_action(self) -> None:
        rooms = ({"role": "user", "content": f"room {number}"} for number in range(1, 4))
        messages = [
            message for room in rooms for message in (room, {"role": "assistant", "content": "go on"})
        ]
        assert len(from_messages(messages)) == 3

    def test_agents_that_differ_in_one_number_differ(self) -> None:
        clicks = [f'click(element_id={i}, page="https://shop.example/list?sort=price")' for i in range(4)]
        assert len({from_message(click) for click in clicks}) == 4


class TestSameGroup:
    def test_a_requeued_rollout_is_one_member(self) -> None:
        lost = Rollout(0, status=RolloutStatus.FAILED, failure=RolloutFailure("timeout", "no answer in 60 s"))
        rollouts = last_attempts([("r1", lost), ("r1", finished(0, 1.0)), ("r2", finished(0, 0.0))])
        assert [rollout.reward for rollout in rollouts] == [1.0, 0.0]
        assert [rollout.index for rollout in rollouts] == [0, 1]
        assert group_label(group(*rollouts)).zero_variance is False

    def test_a_finished_attempt_outlives_a_later_failure(self) -> None:
        lost = Rollout(0, status=RolloutStatus.FAILED)
        assert [rollout.reward for rollout in last_attempts([("r1", finished(0, 1.0)), ("r1", lost)])] == [
            1.0
        ]
        assert last_attempts([("r1", Rollout(0)), ("r1", lost)])[0].status is RolloutStatus.FAILED
        assert last_attempts([]) == ()

    def test_a_group_of_one_is_not_zero_variance(self) -> None:
        alone = Rollout(
            0, tuple(Step(k + 1, a) for k, a in enumerate("abc")), RolloutStatus.FINISHED, reward=1.0
        )
        label = group_label(group(alone))
        assert label.zero_variance is None
        assert label.kind == "unknown"
        assert label.singleton

    def test_groups_of_one_prompt_stay_apart(self) -> None:
        fail = group_label(group(*(finished(i, 0.0) for i in range(3)), group_id="a"))
        success = group_label(group(*(finished(i, 1.0) for i in range(3)), group_id="b"))
        assert (fail.zero_variance, fail.kind) == (True, "all_fail")
        assert (success.zero_variance, success.kind) == (True, "all_success")

    def test_groups_of_uneven_size_are_centred_by_themselves(self) -> None:
        assert [*centred([1.0, 3.0]), *centred([5.0])] == [-1.0, 1.0, 0.0]

    def test_a_member_lost_to_infrastructure_is_kept_apart(self) -> None:
        lost = Rollout(0, status=RolloutStatus.FAILED, failure=RolloutFailure("environment", "sandbox lost"))
        label = group_label(group(lost, *(finished(i, 0.0) for i in range(1, 8))))
        assert (label.failed, label.members, label.scorable) == (1, 7, 7)
        assert label.kind == "all_fail"


class TestSameReward:
    def test_the_whole_group_decides(self) -> None:
        assert zero_variance([1, 0, 0, 0]) is False

    @pytest.mark.parametrize(
        "rewards",
        [
            [0.35, 0.35000002, 0.35, 0.3499999, 0.35, 0.35, 0.35, 0.35],
            [0.6667, 0.66670001, 0.6667, 0.66669999],
        ],
    )
    def test_rounding_residue_is_no_signal(self, rewards: list[float]) -> None:
        assert zero_variance(rewards) is True

    def test_unscored_members_are_not_zeros(self) -> None:
        rewards = [parse_reward(value) for value in (1.0, None, 0.0, math.nan)]
        assert rewards == [1.0, None, 0.0, None]
        assert zero_variance(rewards) is False
        label = group_label(group(*(finished(i, reward) for i, reward in enumerate(rewards))))
        assert label.scorable == 2
        assert centred(rewards) == [0.5, None, -0.5, None]

    def test_nobody_scored_is_unknown(self) -> None:
        assert zero_variance([None, None, None]) is None
        assert group_label(group(*(finished(i, None) for i in range(3)))).scorable == 0

    def test_dict_rewards_need_a_key(self) -> None:
        scores = [{"score": 1.0, "pred": "4"}, {"score": 0.0, "pred": ""}]
        rewards = [parse_reward(score, reward_key="score") for score in scores]
        assert rewards == [1.0, 0.0]
        assert zero_variance(rewards) is False
        with pytest.raises(RewardError, match=r"rollouts\.jsonl:3: .*score, pred.*reward_key"):
            parse_reward(scores[0], where="rollouts.jsonl:3")


class TestCertificates:
    def test_ten_groups_certify_nothing(self) -> None:
        assert fixed_sequence([0], 10, alpha=0.05, delta=0.05) == -1
        assert needed_zero_false(alpha=0.05, delta=0.05) == 59

    def test_59_groups_without_a_false_cut_certify_five_percent(self) -> None:
        assert fixed_sequence([0], 59, alpha=0.05, delta=0.05) == 0
        assert fixed_sequence([0], 58, alpha=0.05, delta=0.05) == -1
        assert upper_bound(0, 59) == pytest.approx(0.049508, abs=1e-6)
        assert clopper_pearson(0, 59, confidence=0.9).high == pytest.approx(0.049508, abs=1e-6)
