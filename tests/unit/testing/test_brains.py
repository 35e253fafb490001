from typing import Any

import pytest

from selective_rollout.errors import ConfigError
from selective_rollout.testing.brains import Brain, EchoBrain, Reply, ScriptedBrain, TutorialBrain


def rollout(brain: Brain, prompt: str, seed: int | None, choice: int = 0) -> list[str]:
    """Actions of one rollout, until it answers."""
    messages: list[dict[str, Any]] = [{"role": "user", "content": prompt}]
    actions: list[str] = []
    while not actions or not actions[-1].startswith("answer("):
        action = brain.reply({"messages": messages}, choice=choice, seed=seed).content
        assert action is not None
        actions.append(action)
        messages += [{"role": "assistant", "content": action}, {"role": "user", "content": "ok"}]
    return actions


def prompt_of_kind(brain: TutorialBrain, *, convergent: bool) -> str:
    return next(p for p in map(str, range(100)) if brain.is_convergent(p) == convergent)


def test_echo_repeats_the_last_message() -> None:
    request = {"messages": [{"role": "user", "content": "one"}, {"role": "user", "content": "two"}]}
    assert EchoBrain().reply(request, choice=0, seed=None) == Reply(content="two")


def test_a_script_is_read_by_the_number_of_assistant_messages() -> None:
    brain = ScriptedBrain(["look", Reply(content="take")])
    said = {"role": "assistant", "content": "look"}
    assert brain.reply({"messages": []}, choice=0, seed=None).content == "look"
    assert brain.reply({"messages": [said]}, choice=3, seed=9).content == "take"
    with pytest.raises(ConfigError, match="holds 2 replies; step 3"):
        brain.reply({"messages": [said, said]}, choice=0, seed=None)


def test_a_script_may_be_a_function() -> None:
    brain = ScriptedBrain(lambda request, choice, seed: f"{choice}/{seed}")
    assert brain.reply({"messages": []}, choice=1, seed=5).content == "1/5"


def test_convergent_prompts_make_all_rollouts_alike() -> None:
    brain = TutorialBrain(0.5, steps=4)
    prompt = prompt_of_kind(brain, convergent=True)
    rollouts = [rollout(brain, prompt, seed) for seed in range(8)]
    assert all(actions == rollouts[0] for actions in rollouts)
    assert len(rollouts[0]) == 4
    assert rollouts[0][-1] == f"answer({brain.answer(prompt, seed=0)})"


def test_divergent_prompts_make_every_seed_go_its_own_way() -> None:
    brain = TutorialBrain(0.5, steps=4)
    prompt = prompt_of_kind(brain, convergent=False)
    rollouts = [rollout(brain, prompt, seed) for seed in range(8)]
    for step in range(3):
        assert len({actions[step] for actions in rollouts}) == 8
    assert rollout(brain, prompt, 3) == rollouts[3]
    assert {brain.answer(prompt, seed) for seed in range(20)} == {"yes", "no"}


def test_without_a_seed_the_choice_tells_rollouts_apart() -> None:
    brain = TutorialBrain(0.0, steps=2)
    assert rollout(brain, "p", None, choice=0) != rollout(brain, "p", None, choice=1)


def test_the_convergent_fraction_is_the_share_of_prompts() -> None:
    prompts = [f"prompt {i}" for i in range(2000)]
    share = sum(map(TutorialBrain(0.3).is_convergent, prompts)) / len(prompts)
    assert share == pytest.approx(0.3, abs=0.04)
    assert not any(map(TutorialBrain(0.0).is_convergent, prompts))
    assert all(map(TutorialBrain(1.0).is_convergent, prompts))


def test_another_salt_draws_other_prompts() -> None:
    prompts = [f"prompt {i}" for i in range(100)]
    first = [TutorialBrain(salt="a").is_convergent(p) for p in prompts]
    assert first != [TutorialBrain(salt="b").is_convergent(p) for p in prompts]


@pytest.mark.parametrize("arguments", [{"convergent_fraction": 1.5}, {"steps": 0}])
def test_impossible_tutorials_are_refused(arguments: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        TutorialBrain(**arguments)
