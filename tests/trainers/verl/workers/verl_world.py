"""The model folder, the tool, the stand-in for the generating servers and verl's configuration.

A prompt is a word: with "=" in it all rollouts act alike and fail, else each acts in its own way, and of
those that one client serves the first one is right.
"""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import verl
from hydra import compose, initialize_config_dir
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, PreTrainedTokenizerFast
from verl.protocol import DataProto
from verl.workers.rollout.replica import TokenOutput

TURNS = 6
SIZE = 4
SETTINGS = Path(verl.__file__).parent / "trainer" / "config"
TEMPLATE = (
    "{% for m in messages %}[{{ m['role'] }}]{{ m['content'] }}{% for c in m.get('tool_calls') or [] %}"
    "<tool_call>{{ c['function']['name'] }}{{ c['function']['arguments'] | tojson }}</tool_call>"
    "{% endfor %}</s>{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}"
)
TOOL = '''
from verl.tools.function_tool import function_tool


@function_tool
async def look(place: str) -> str:
    """Look somewhere.

    Args:
        place: where to look.
    """
    return f"nothing in {place}"
'''


def make_model(folder: Path) -> None:
    """A tokenizer of bytes and the settings of a model that nobody loads."""
    vocabulary = {letter: i for i, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    letters = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    letters.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    letters.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=letters, eos_token="</s>", pad_token="<pad>", chat_template=TEMPLATE
    )
    tokenizer.save_pretrained(folder)
    LlamaConfig(
        architectures=["LlamaForCausalLM"],
        vocab_size=300,
        hidden_size=8,
        intermediate_size=8,
        num_hidden_layers=1,
        num_attention_heads=1,
    ).save_pretrained(folder)


def configure(folder: Path, agents: str, *more: str) -> Any:
    """verl's own configuration of PPO, for rollouts of these agent loops."""
    if not (folder / "model").exists():
        make_model(folder / "model")
        (folder / "tools.py").write_text(TOOL, encoding="utf-8")
    (folder / "agents.yaml").write_text(agents, encoding="utf-8")
    rollout = "actor_rollout_ref.rollout"
    with initialize_config_dir(config_dir=str(SETTINGS), version_base=None):
        return compose(
            "ppo_trainer",
            overrides=[
                f"actor_rollout_ref.model.path={folder / 'model'}",
                f"{rollout}.name=vllm",
                f"{rollout}.n={SIZE}",
                f"{rollout}.prompt_length=200",
                f"{rollout}.response_length=1200",
                f"{rollout}.calculate_log_probs=true",
                f"{rollout}.multi_turn.function_tool_path={folder / 'tools.py'}",
                f"{rollout}.agent.num_workers=2",
                f"{rollout}.agent.agent_loop_config_path={folder / 'agents.yaml'}",
                f"{rollout}.agent.default_agent_loop=gated",
                "algorithm.filter_groups.enable=true",
                "algorithm.filter_groups.metric=reward",
                *more,
            ],
        )


class Servers:
    """The stand-in: counts requests, and answers by what the prompt says; where it hangs it never answers."""

    def __init__(self, tokenizer: Any, *, hangs: bool = False) -> None:
        self.tokenizer = tokenizer
        self.hangs = hangs
        self.asked: Counter[str] = Counter()
        self.members: defaultdict[str, dict[str, int]] = defaultdict(dict)

    async def generate(
        self, request_id: str, *, prompt_ids: list[int], sampling_params: dict[str, Any], **others: Any
    ) -> TokenOutput:
        heard = self.tokenizer.decode(prompt_ids)
        task = heard.split("[user]")[1].split("</s>")[0]
        self.asked[task] += 1
        members = self.members[task]
        turn = heard.count("[tool]")
        await (asyncio.Future() if self.hangs else asyncio.sleep(0))
        text = self._answer(task, turn, members.setdefault(request_id, len(members)), request_id)
        tokens = [*self.tokenizer.encode(text, add_special_tokens=False), self.tokenizer.eos_token_id]
        return TokenOutput(
            token_ids=tokens,
            log_probs=[-0.5] * len(tokens),
            stop_reason="completed",
            extra_fields={"min_global_steps": 1, "max_global_steps": 1},
        )

    def _answer(self, task: str, turn: int, member: int, request_id: str) -> str:
        if turn == TURNS - 1:
            return "#### 1" if "=" not in task and member == 0 else "#### 0"
        place = f"room {turn}" if "=" in task else f"room {turn} {request_id}"
        return f'<tool_call>\n{{"name": "look", "arguments": {{"place": "{place}"}}}}\n</tool_call>'


def row(task: str) -> dict[str, Any]:
    """A row of the data set."""
    return {
        "raw_prompt": [{"role": "user", "content": task}],
        "index": 0,
        "data_source": "openai/gsm8k",
        "reward_model": {"ground_truth": "1", "style": "rule"},
    }


def batch_of(tasks: list[str], *, validate: bool = False, numbered: bool = True) -> DataProto:
    """What the older trainer hands to a worker: each prompt side by side, its rows numbered."""
    rows = [
        {**row(task), "uid": f"uid-{task}-{place}", "priority": place * SIZE + member}
        for place, task in enumerate(tasks)
        for member in range(SIZE)
    ]
    columns: dict[str, Any] = {}
    for name in rows[0]:
        columns[name] = np.empty(len(rows), dtype=object)
        columns[name][:] = [each[name] for each in rows]
    if not numbered:
        del columns["priority"]
    return DataProto(
        batch=None, non_tensor_batch=columns, meta_info={"global_steps": 1, "validate": validate}
    )
