"""The ids of `tokenizers`, on the vocabularies of real models."""

import unicodedata
from dataclasses import dataclass

import pytest
from hypothesis import HealthCheck, given, settings
from tokenizers import Tokenizer

from services.tokenizer import encoders
from services.tokenizer.bpe_encoder import BpeEncoder
from tests.tokenizer.bpe import vocabularies
from tests.tokenizer.bpe.texts import CORPUS, STRINGS
from tests.tokenizer.examples import examples


@dataclass(frozen=True)
class Pair:
    name: str
    encoder: BpeEncoder
    trusting: Tokenizer
    plain: Tokenizer

    def check(self, text: str) -> None:
        for add_special, reference in ((True, self.trusting), (False, self.plain)):
            ids = self.encoder.encode(text, add_special=add_special)
            assert ids.tolist() == reference.encode_batch_fast([text], add_special_tokens=False)[0].ids
        said = b"".join(self.encoder.vocabulary.token_bytes[i] for i in ids).decode()
        assert said == self.normal(text)
        assert self.encoder.vocabulary.least_tokens(text) <= len(ids)

    def normal(self, text: str) -> str:
        """What a vocabulary makes of a text before it is cut."""
        marked = text.replace("\u2581", " ")
        return {
            "qwen3": unicodedata.normalize("NFC", text),
            "gemma3": marked,
            "llama2": " " + marked if text else "",
        }.get(self.name, text)


@pytest.fixture(scope="module", params=vocabularies.PINS)
def pair(request: pytest.FixtureRequest) -> Pair:
    folder = vocabularies.folder(request.param)
    encoder = encoders.from_folder(folder)
    assert isinstance(encoder, BpeEncoder)
    trusting = Tokenizer.from_file(str(folder / "tokenizer.json"))
    plain = Tokenizer.from_str(trusting.to_str())
    plain.encode_special_tokens = True
    return Pair(request.param, encoder, trusting, plain)


def test_the_corpus(pair: Pair) -> None:
    for text in CORPUS.values():
        pair.check(text)
    pair.check("".join(CORPUS.values()))


@pytest.mark.slow  # 400 texts for each of six vocabularies; HOSTLESS_EXAMPLES=100000 for a long run
def test_any_text(pair: Pair) -> None:
    @settings(max_examples=examples(400), deadline=None, suppress_health_check=list(HealthCheck))
    @given(STRINGS)
    def check(text: str) -> None:
        pair.check(text)

    check()


def test_the_begin_token(pair: Pair) -> None:
    with_begin = pair.trusting.encode("a").ids
    vocabulary = pair.encoder.vocabulary
    assert vocabulary.add_bos == (vocabulary.bos_id is not None and with_begin[0] == vocabulary.bos_id)


def test_what_tokens_say(pair: Pair) -> None:
    vocabulary = pair.encoder.vocabulary
    assert vocabulary.size == max(pair.trusting.get_vocab(with_added_tokens=True).values()) + 1
    for token in range(0, vocabulary.size, 97):
        if token in vocabulary.control.values() or vocabulary.token_bytes[token].startswith(b" "):
            continue
        said = vocabulary.token_bytes[token].decode(errors="replace")
        assert said == pair.trusting.decode([token], skip_special_tokens=False)


def test_a_batch(pair: Pair) -> None:
    texts = list(CORPUS.values()) * 3
    batch = pair.encoder.encode_batch(texts, add_special=False, threads=3)
    assert [ids.tolist() for ids in batch] == [pair.encoder.encode(t, add_special=False).tolist() for t in texts]
