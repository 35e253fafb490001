"""The parts of the training comparison that its numbers rest on."""

from __future__ import annotations

from itertools import islice

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: make test-trainers")

from benchmarks.grpo_ab.demonstrator import carelessness, plan
from benchmarks.grpo_ab.learning import advantages, gradient, update
from benchmarks.grpo_ab.policy import Policy, Written, attention_mask, encode, log_probs, write
from benchmarks.grpo_ab.sampling import sample_groups
from benchmarks.grpo_ab.world import CONTEXT, END, MAX_ACTION, World, command_of, ids, words_of

from selective_rollout.engine.training import TrainingGate
from selective_rollout.env.household_scenario import household_tasks
from selective_rollout.gate.config import GateConfig

pytestmark = pytest.mark.trainers


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)


def test_notes_fit_and_commands_survive_being_written_in_words():
    for task in islice(household_tasks(40, seed=3), 40):
        world = World.open(task)
        for _ in range(30):
            command = plan(world.notes)
            assert len(world.notes.text()) <= CONTEXT
            assert command_of(words_of(command)) == command
            assert len(words_of(command)) < MAX_ACTION
            if world.step(command).terminated:
                break


def test_a_careful_demonstrator_succeeds_wherever_the_steps_suffice():
    done = solved = 0
    for task in household_tasks(60, seed=4):
        world = World.open(task)
        for _ in range(60):
            reply = world.step(plan(world.notes))
            if reply.terminated:
                done += 1
                solved += reply.reward == 1.0
                break
    assert done == solved == 60


def test_carelessness_differs_between_objects_and_stays_with_them():
    degrees = {carelessness(target) for target in ("apple", "bowl", "coin", "jar", "lamp", "mug", "ring")}
    assert len(degrees) > 1
    assert carelessness("mug") == carelessness("mug")


def test_sampling_from_memory_equals_reading_everything_again():
    policy = Policy()
    notes = [encode(World.open(task).notes.text()) for task in household_tasks(3, seed=5)] * 2
    written = write(policy, notes, torch.Generator().manual_seed(1), temperature=1e-4)
    for row, step in zip(notes, written, strict=True):
        for place, token in enumerate(step.tokens):
            so_far = torch.tensor([row + step.tokens[:place]])
            assert int(policy(so_far, attention_mask(so_far))[0, -1].argmax()) == token


def test_log_probabilities_are_those_of_the_written_words_only():
    policy, table = Policy(), ids()
    notes = encode(World.open(next(household_tasks(1, seed=6))).notes.text())
    short, long = ([table["take"], table[END]], [table["go"], table["to"], table["sink"], table[END]])
    alone, _ = log_probs(policy, [Written(notes, short)])
    together, is_word = log_probs(policy, [Written(notes, short), Written(notes, long)])
    assert is_word.sum(1).tolist() == [2, 4]
    assert torch.allclose(alone[0, :2], together[0, :2], atol=1e-6)


def sampled(gate: TrainingGate, policy: Policy, temperature: float = 1.0):
    tasks = [(f"{task.id}#0", task) for task in household_tasks(6, seed=7)]
    return sample_groups(
        policy,
        tasks,
        gate,
        group_size=4,
        max_steps=6,
        generator=torch.Generator().manual_seed(2),
        temperature=temperature,
    )


@pytest.mark.filterwarnings("ignore:enforcing a gate without a certificate")
def test_a_cut_group_stops_at_the_check_and_the_rest_runs_on():
    rule, greedy = GateConfig(start_step=3), 1e-4  # siblings that do the same
    groups = sampled(TrainingGate(rule, mode="enforce"), Policy(), greedy)
    assert {len(written) for one in groups for written in one.written} == {3}
    assert all(one.outcome.cut_at == 3 and not one.outcome.trainable for one in groups)
    whole = sampled(TrainingGate(rule), Policy(), greedy)
    assert max(len(written) for one in whole for written in one.written) == 6
    assert all(one.outcome.would_cut_at == 3 and one.outcome.trainable for one in whole)


def test_flat_groups_only_dilute(monkeypatch):
    policy = Policy()
    groups = sampled(TrainingGate(GateConfig(start_step=3)), policy)
    signal, flat = groups[:2], groups[2:]

    def some_advantage(one):
        return [1.0, -1.0, 1.0, -1.0] if one in signal else [0.0] * 4

    monkeypatch.setattr("benchmarks.grpo_ab.learning.advantages", some_advantage)
    alone = gradient(policy, signal, 1.0)
    diluted = gradient(policy, [*signal, *flat], 1.0)
    share = alone.kept_tokens / diluted.kept_tokens
    assert share < 1
    assert diluted.gradient_norm == pytest.approx(share * alone.gradient_norm, rel=1e-5)


def test_without_signal_the_weights_stay_as_they_are():
    policy = Policy()
    groups = sampled(TrainingGate(GateConfig(start_step=3)), policy)
    assert all(advantages(one) == [0.0] * 4 for one in groups)  # an untrained policy never succeeds
    before = [weight.clone() for weight in policy.parameters()]
    optimizer = torch.optim.Adam(policy.parameters(), lr=0.1)
    assert update(policy, optimizer, groups, 1.0).gradient_norm == 0.0
    assert all(torch.equal(a, b) for a, b in zip(before, policy.parameters(), strict=True))
