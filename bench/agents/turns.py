"""Conversations of agents whose turns end at and beside the borders of KV blocks: what each says, and how much."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from bench.engine.chats import report
from services.common.keys import BLOCK_TOKENS
from services.tokenizer.model_text import ModelText

TURNS = (2, 3, 2, 4)
BESIDE = (-1, 0, 1)
NEW_TOKENS = (2, 3, 5)
GROUP = 8  # conversations

Tokens = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Turn:
    prompt_tokens: int
    new_tokens: int


@dataclass(slots=True)
class Conversation:
    """Each turn answered adds one to `prompts`, `answers` and `spoken`."""

    turns: list[Turn]
    words: Tokens  # what it has to say, endless
    prompts: list[Tokens] = field(default_factory=list)
    answers: list[str] = field(default_factory=list)
    spoken: list[Tokens] = field(default_factory=list)  # each prompt with the ids of its answer

    def next_prompt(self) -> Tokens:
        before, turn = self.spoken[-1] if self.spoken else (), self.turns[len(self.prompts)]
        return before + self.words[len(before) : max(turn.prompt_tokens, len(before) + 1)]


def turns_of(number: int, new_tokens: Sequence[int]) -> list[Turn]:
    """At the end of turn t about t + 1 blocks are full; the digits of `number` say by how much more or less."""
    first = 2 if shares(number) else 1
    turns = []
    for at in range(TURNS[number % 4]):
        beside = BESIDE[(number // 8 + at) % 3]
        new = new_tokens[(number // 24 + at) % len(new_tokens)]
        of_answer = number // 4 % 2
        # the last token of an answer is never computed
        turns.append(Turn(BLOCK_TOKENS * (first + at) + beside - (new - 1) * of_answer, new))
    return turns


def shares(number: int) -> bool:
    """Whether its first block is its group's."""
    return number // GROUP % 4 == 1


def conversations(count: int, text: ModelText, new_tokens: Sequence[int] = NEW_TOKENS) -> list[Conversation]:
    def words(seed: int) -> Tokens:
        return tuple(text.encoder.encode(report(40, seed), add_special=False).tolist())

    made = []
    for number in range(count):
        begin = words(1000 + number // GROUP)[:BLOCK_TOKENS] if shares(number) else ()
        made.append(Conversation(turns_of(number, new_tokens), begin + words(number)[len(begin) :]))
    return made


def blocks_of(tokens: Tokens, computed: int) -> set[Tokens]:
    """The full blocks of the first `computed` tokens, each named by all tokens up to its end."""
    return {tokens[:end] for end in range(BLOCK_TOKENS, computed + 1, BLOCK_TOKENS)}
