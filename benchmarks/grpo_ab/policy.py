"""A transformer of about 30,000 weights that reads notes and writes a command, word by word."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch
from benchmarks.grpo_ab.world import CONTEXT, END, MAX_ACTION, PAD, ids, words
from torch import Tensor, nn
from torch.nn import functional

LENGTH = CONTEXT + MAX_ACTION

Memory: TypeAlias = list[tuple[Tensor, Tensor]]
"""Keys and values of each block, (rows, heads, places, width of a head)."""


class Policy(nn.Module):
    """Decoder-only transformer over notes followed by a command.

    Args:
        width: size of the residual stream.
        layers: number of blocks.
        heads: attention heads of each block.
    """

    def __init__(self, width: int = 32, layers: int = 2, heads: int = 4) -> None:
        super().__init__()
        count = len(words())
        self.word = nn.Embedding(count, width)
        self.place = nn.Embedding(LENGTH, width)
        self.blocks = nn.ModuleList([_Block(width, heads) for _ in range(layers)])
        self.norm = nn.LayerNorm(width)
        nn.init.normal_(self.word.weight, std=width**-0.5)
        nn.init.normal_(self.place.weight, std=width**-0.5)

    def forward(self, tokens: Tensor, mask: Tensor, memory: Memory | None = None) -> Tensor:
        """Logits of the next word at every place.

        Args:
            tokens: ids, (rows, places), which follow on what the memory holds.
            mask: True where a place may look, (rows, 1, places, places in memory + places).
            memory: keys and values of earlier places; added to.

        Returns:
            Logits, (rows, places, words).
        """
        start = memory[0][0].shape[2] if memory else 0
        x = self.word(tokens) + self.place(torch.arange(start, start + tokens.shape[1]))
        earlier = list(memory or ())
        if memory is not None:
            memory.clear()
        for i, block in enumerate(self.blocks):
            x, kept = block(x, mask, earlier[i] if earlier else None)
            if memory is not None:
                memory.append(kept)
        return self.norm(x) @ self.word.weight.T  # shared weights: to copy a word is to attend to it


class _Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before, self.after = nn.LayerNorm(width), nn.LayerNorm(width)
        self.mix, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(
        self, x: Tensor, mask: Tensor, earlier: tuple[Tensor, Tensor] | None
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        rows, places, width = x.shape
        query, key, value = (
            part.view(rows, places, self.heads, width // self.heads).transpose(1, 2)
            for part in self.mix(self.before(x)).chunk(3, dim=-1)
        )
        if earlier is not None:
            key, value = torch.cat([earlier[0], key], dim=2), torch.cat([earlier[1], value], dim=2)
        mixed = functional.scaled_dot_product_attention(query, key, value, attn_mask=mask)
        x = x + self.out(mixed.transpose(1, 2).reshape(rows, places, width))
        return x + self.down(functional.gelu(self.up(self.after(x)))), (key, value)


@dataclass(slots=True)
class Written:
    """One command as it was sampled."""

    notes: list[int]
    """Token ids read, padded to `CONTEXT`."""
    tokens: list[int]
    """Token ids written, the end mark included if it came."""

    @property
    def action(self) -> list[str]:
        """The words, without the end mark."""
        vocabulary = words()
        return [vocabulary[token] for token in self.tokens if vocabulary[token] != END]


def encode(notes: Sequence[str]) -> list[int]:
    """Token ids of notes, padded so that every command starts at the same place."""
    table = ids()
    return [table[word] for word in notes] + [table[PAD]] * (CONTEXT - len(notes))


@torch.no_grad()
def write(
    policy: Policy, notes: list[list[int]], generator: torch.Generator, temperature: float
) -> list[Written]:
    """Sample one command per row.

    Args:
        policy: the model.
        notes: encoded notes, one row per rollout.
        generator: source of randomness.
        temperature: of the softmax.
    """
    distinct = {tuple(row): i for i, row in enumerate(dict.fromkeys(map(tuple, notes)))}
    which = torch.tensor([distinct[tuple(row)] for row in notes])  # siblings often read the same notes
    tokens = torch.tensor(list(distinct))
    memory: Memory = []
    logits = policy(tokens, attention_mask(tokens), memory)[which, -1]
    memory[:] = [(key[which], value[which]) for key, value in memory]
    seen = (tokens != ids()[PAD])[which]
    done = torch.zeros(len(notes), dtype=torch.bool)
    written: list[list[int]] = [[] for _ in notes]
    for place in range(MAX_ACTION):
        chosen = torch.multinomial(torch.softmax(logits / temperature, -1), 1, generator=generator)
        for row, token in enumerate(chosen[:, 0].tolist()):
            if not done[row]:
                written[row].append(token)
        done |= chosen[:, 0] == ids()[END]
        if bool(done.all()) or place == MAX_ACTION - 1:
            break
        seen = torch.cat([seen, torch.ones_like(seen[:, :1])], dim=1)
        logits = policy(chosen, seen[:, None, None, :], memory)[:, -1]
    return [Written(row, out) for row, out in zip(notes, written, strict=True)]


def log_probs(policy: Policy, steps: Sequence[Written], temperature: float = 1.0) -> tuple[Tensor, Tensor]:
    """Log-probability of every written word, and which places are words: both (steps, MAX_ACTION)."""
    pad = ids()[PAD]
    rows = [step.notes + step.tokens + [pad] * (MAX_ACTION - len(step.tokens)) for step in steps]
    tokens = torch.tensor(rows)
    logits = policy(tokens[:, :-1], attention_mask(tokens[:, :-1]))[:, CONTEXT - 1 :]
    targets = tokens[:, CONTEXT:]
    chosen = functional.log_softmax(logits / temperature, -1).gather(-1, targets[..., None])[..., 0]
    lengths = torch.tensor([len(step.tokens) for step in steps])
    return chosen, torch.arange(MAX_ACTION)[None] < lengths[:, None]


def attention_mask(tokens: Tensor) -> Tensor:
    """Every place looks back at words and at itself; a command starts from the last place of the notes."""
    places = tokens.shape[1]
    causal = torch.ones(places, places, dtype=torch.bool).tril()
    real = (tokens != ids()[PAD])[:, None, None, :]
    itself = torch.eye(places, dtype=torch.bool)
    return (causal & real) | itself
