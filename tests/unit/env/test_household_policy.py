from itertools import cycle, islice

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from selective_rollout.env import HouseholdEnvironment, household_habits, household_reply, household_tasks
from selective_rollout.env.household import NOTHING_HAPPENS, split_command
from selective_rollout.env.household_scenario import STATIONS, draw_scenario
from selective_rollout.errors import ConfigError

TASKS = list(household_tasks(60))


def play(task, seed: int, max_steps: int = 80):
    """Let the scripted agent act; returns its actions, the results, and the conversation."""
    world = HouseholdEnvironment(task)
    messages = [
        {"role": "system", "content": task.prompt},
        {"role": "user", "content": world.start().text},
    ]
    actions, results = [], []
    while len(actions) < max_steps and not (results and results[-1].terminated):
        actions.append(household_reply(messages, seed))
        results.append(world.step(actions[-1]))
        messages += [
            {"role": "assistant", "content": actions[-1]},
            {"role": "user", "content": results[-1].observation},
        ]
    return actions, results, messages


@settings(max_examples=60, deadline=None)
@given(task=st.sampled_from(TASKS), seed=st.integers(0, 2**63))
def test_every_action_is_possible_and_the_rollout_ends_with_an_answer(task, seed):
    actions, results, _ = play(task, seed)
    assert not any(result.is_error for result in results)
    assert [action.startswith("answer(") for action in actions] == [False] * (len(actions) - 1) + [True]


@pytest.mark.parametrize("task", TASKS[:20], ids=lambda task: task.id)
def test_sharp_agents_do_as_their_habits_say(task):
    habits = household_habits(task.prompt)
    scenario = draw_scenario(task.metadata["seed"])
    seed = next((s for s in range(200) if is_free_of_strays(task, s)), None)
    if seed is None:
        pytest.skip("this agent is too diffuse for a rollout without stray actions")
    actions, results, _ = play(task, seed)
    rank = habits.search_order.index(scenario.source)
    last = split_command(actions[-1])[1]
    if rank >= habits.patience:
        assert last == habits.search_order[habits.patience]
        assert results[-1].reward == 0.0
    elif last == scenario.source:
        treated = any(action.partition(" ")[0] in STATIONS for action in actions)
        assert results[-1].reward == float(treated or scenario.treatment is None)
    else:
        assert (habits.slip_kind, last) == ("misreport", scenario.destination)
        assert habits.slip > 0


def is_free_of_strays(task, seed: int) -> bool:
    """True if the rollout visits places in the believed order only, as far as it searches."""
    habits = household_habits(task.prompt)
    scenario = draw_scenario(task.metadata["seed"])
    searched = [noun for verb, noun in map(split_command, play(task, seed)[0]) if verb == "go to"]
    rank = habits.search_order.index(scenario.source) + 1
    return searched[: min(rank, habits.patience)] == list(habits.search_order[: min(rank, habits.patience)])


def test_replies_depend_on_conversation_and_seed_only():
    for task, seed in islice(zip(cycle(TASKS), range(100), strict=False), 10):
        actions, _, messages = play(task, seed)
        assert play(task, seed)[0] == actions
        for k in reversed(range(len(actions))):
            assert household_reply(messages[: 2 + 2 * k], seed) == actions[k]


def test_seeds_differ_on_diffuse_prompts_and_agree_on_perfectly_sharp_decided_ones():
    for task in TASKS:
        habits = household_habits(task.prompt)
        ways = {tuple(play(task, seed)[0]) for seed in range(8)}
        if habits.epsilon == 0 and habits.slip in (0.0, 1.0):
            assert len(ways) == 1
        if habits.epsilon >= 0.15:
            assert len(ways) > 1


def test_slips_come_at_their_rate():
    task = next(
        t
        for t in household_tasks(400)
        if (h := household_habits(t.prompt)).epsilon == 0
        and 0 < h.slip < 1
        and h.search_order.index(draw_scenario(t.metadata["seed"]).source) < h.patience
    )
    won = [play(task, seed)[1][-1].reward for seed in range(300)]
    expected = 1 - household_habits(task.prompt).slip
    assert abs(sum(won) / 300 - expected) < 4 * (expected * (1 - expected) / 300) ** 0.5


@pytest.mark.parametrize(
    "opening",
    [
        lambda prompt, seen: [{"role": "user", "content": prompt}, {"role": "user", "content": seen}],
        lambda prompt, seen: [{"role": "user", "content": f"{prompt}\n\n{seen}"}],
        lambda prompt, seen: [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": [{"type": "text", "text": prompt}]},
            {"role": "user", "content": [{"type": "text", "text": seen}]},
        ],
    ],
)
def test_the_prompt_is_found_in_any_usual_opening(opening):
    for task in TASKS[:20]:
        seen = HouseholdEnvironment(task).start().text
        usual = [{"role": "system", "content": task.prompt}, {"role": "user", "content": seen}]
        assert household_reply(opening(task.prompt, seen), 5) == household_reply(usual, 5)


def test_a_refused_action_leaves_the_agent_where_it_was():
    task = next(t for t in TASKS if household_habits(t.prompt).epsilon == 0)
    seen = HouseholdEnvironment(task).start().text
    before = [{"role": "system", "content": task.prompt}, {"role": "user", "content": seen}]
    refused = [{"role": "assistant", "content": "dance"}, {"role": "user", "content": NOTHING_HAPPENS}]
    assert household_reply([*before, *refused], 5) == household_reply(before, 5)


@pytest.mark.parametrize(
    "messages", [[], [{"role": "user", "content": "Hello"}], [{"role": "user", "content": None}]]
)
def test_a_conversation_without_the_prompt_is_refused(messages):
    with pytest.raises(ConfigError, match="no message holds a household prompt"):
        household_reply(messages, 1)


@pytest.mark.parametrize("prompt", ["", "You are in house easy-0-1. Task: none", TASKS[0].prompt[:200]])
def test_habits_need_a_whole_prompt(prompt):
    with pytest.raises(ConfigError, match="not a household prompt"):
        household_habits(prompt)
