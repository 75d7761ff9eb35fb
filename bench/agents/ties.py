"""Whether an answer that is not the expected one may come from the same model all the same.

A model of random weights has places where two tokens are as likely as each other, to the last bits of a sum; which is
taken hangs on the order of the sum's parts, and that on what else is in a batch. So an answer is accepted, as a tie, if
a reference (transformers, float32) says of each of its tokens that it is the likeliest, or behind it by no more than
rounding. Everything else is another answer.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from transformers import LlamaForCausalLM

from services.tokenizer.detokenize import Detokenizer, TokenText

TIE = 1e-5
"""Of the logits' spread (highest less lowest). Float32 moves the small model's logits by up to 1.6e-6 of it (float64
says so), so that two of them, computed in two ways, may change places from 6e-6 down."""

Ids = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Suspect:
    """`text` where `right` was expected. Of `new_tokens`, or, if it isn't whole, of any number up to that."""

    prompt: Ids
    new_tokens: int
    text: str
    right: str
    whole: bool
    where: str


@dataclass(frozen=True, slots=True)
class Verdict:
    tie: bool
    told: str


@dataclass(slots=True)
class Judge:
    """Walks along the reference's likeliest tokens, and along both where two are."""

    model: LlamaForCausalLM
    table: TokenText
    _logits: dict[Ids, torch.Tensor] = field(default_factory=dict)
    _known: dict[tuple[Ids, str, str], Verdict] = field(default_factory=dict)

    def judge(self, suspect: Suspect) -> Verdict:
        """Both the answer and what was expected must be the model's. The same answer to the same prompt is looked at
        once."""
        key = suspect.prompt, suspect.text, suspect.right
        if key not in self._known:
            self._known[key] = self._judge(suspect)
        return self._known[key]

    def _judge(self, suspect: Suspect) -> Verdict:
        prompt, new = suspect.prompt, suspect.new_tokens
        answer = self._of_model(prompt, new, suspect.text, suspect.whole)
        right = self._of_model(prompt, new, suspect.right, True)
        told = f"first at {suspect.where}, {len(prompt)} prompt tokens: answer {answer.told}; expected {right.told}"
        return Verdict(answer.tie and right.tie, told)

    def _of_model(self, prompt: Ids, most: int, text: str, whole: bool) -> Verdict:
        open_paths: list[tuple[Ids, list[str]]] = [((), [])]
        furthest: Ids = ()
        while open_paths:
            ids, ties = open_paths.pop()
            if self._ends(ids, most, text, whole):
                return Verdict(True, f"by {len(ties)} ties ({'; '.join(ties)})" if ties else "the reference's")
            if len(ids) == most:
                continue
            furthest = max(furthest, ids, key=len)
            logits = self._after(prompt + ids)
            margins = self._margins(logits)
            likeliest = [int(token) for token in torch.nonzero(margins <= TIE)[:, 0]]
            for token in likeliest:
                if text.startswith(self._text((*ids, token))):
                    tie = [f"token {len(ids)}: {likeliest} within {float(margins[likeliest].max()):.1e}"]
                    open_paths.append(((*ids, token), ties + tie * (len(likeliest) > 1)))
        return Verdict(False, self._why_not(prompt, furthest, text))

    def _ends(self, ids: Ids, most: int, text: str, whole: bool) -> bool:
        if whole:
            return len(ids) == most and self._text(ids, True) == text
        return text in (self._text(ids), self._text(ids, True))

    def _why_not(self, prompt: Ids, ids: Ids, text: str) -> str:
        """Where its text leaves the reference's, and how much less likely its token is."""
        margins = self._margins(self._after(prompt + ids))
        fitting = [t for t in range(len(margins)) if text.startswith(self._text((*ids, t)))]
        best = min((float(margins[t]) for t in fitting), default=float("inf"))
        return (
            f"differs at token {len(ids)}, where the reference has {int(margins.argmin())} and the likeliest token of "
            f"such a text is behind it by {best:.1e} of the spread: {text!r}"
        )

    def _margins(self, logits: torch.Tensor) -> torch.Tensor:
        """By which each token is behind the likeliest, as a part of the spread."""
        return (logits.max() - logits) / (logits.max() - logits.min())

    def _text(self, ids: Sequence[int], ended: bool = False) -> str:
        stream = Detokenizer(self.table)
        text = stream.push(ids)
        return text + stream.finish() if ended else text

    @torch.inference_mode()
    def _after(self, ids: Ids) -> torch.Tensor:
        if ids not in self._logits:
            self._logits[ids] = self.model(torch.tensor([ids])).logits[0, -1].double()
        return self._logits[ids]
