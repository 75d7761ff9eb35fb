"""One request's text as its tokens come: detokenized, and ended by a stop string."""

from collections.abc import Sequence

from services.tokenizer.detokenize import Detokenizer, TokenText
from services.tokenizer.stop_strings import StopMatcher, StopStrings


class TextStream:
    """`tokens` counts those taken: up to the one that completed a stop string, never those behind it."""

    __slots__ = ("_detokenizer", "_matcher", "tokens")

    def __init__(self, text: TokenText, stops: Sequence[str]) -> None:
        self._detokenizer = Detokenizer(text)
        self._matcher = StopMatcher(StopStrings(stops)) if stops else None
        self.tokens = 0

    @property
    def stopped(self) -> bool:
        """A stop string was completed: nothing more is taken."""
        return self._matcher is not None and self._matcher.stopped

    def echo(self, ids: Sequence[int]) -> str:
        """The prompt's text, for the front. A character that the prompt leaves open is completed by the tokens."""
        return self._detokenizer.push(ids)

    def push(self, ids: Sequence[int]) -> str:
        """The text that can be sent now."""
        if self._matcher is None:
            text = self._detokenizer.push(ids)
            self.tokens += len(ids)
            return text
        sent = []
        for token in ids:
            sent.append(self._matcher.push(self._detokenizer.push((token,))))
            self.tokens += 1
            if self._matcher.stopped:
                break
        return "".join(sent)

    def count(self, tokens: int) -> None:
        """Tokens without text: the stop token that ended the request."""
        self.tokens += tokens

    def finish(self) -> str:
        """What was held back, once no token follows."""
        text = self._detokenizer.finish()
        if self._matcher is None or self._matcher.stopped:
            return "" if self.stopped else text
        sent = self._matcher.push(text)
        return sent if self._matcher.stopped else sent + self._matcher.finish()
