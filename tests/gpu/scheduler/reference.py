"""What the toy engine (toy.cu) must generate: the same hash, in Python's own integers."""

from services.gpu_backend._scheduler import uniform

VOCABULARY = 997
_WORD = (1 << 64) - 1


def scramble(x: int) -> int:
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 & _WORD
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB & _WORD
    return x ^ (x >> 31)


def absorb(state: int, token: int) -> int:
    return (scramble(state ^ (token + 1)) + token) & _WORD


def prompt_tokens(seed: int, count: int) -> list[int]:
    return [scramble((seed * 31 + position) & _WORD) % VOCABULARY for position in range(count)]


def expected_tokens(seed: int, prompt: list[int], most: int, stop_id: int) -> list[int]:
    """All that a request generates if nothing ends it early; the stop token is the last."""
    state, tokens = 0, list[int]()
    for token in prompt:
        state = absorb(state, token)
    while len(tokens) < most:
        draw = int(uniform(seed, len(tokens)) * 16777216.0)
        tokens.append(scramble((state + draw) & _WORD) % VOCABULARY)
        if tokens[-1] == stop_id:
            break
        state = absorb(state, tokens[-1])
    return tokens
