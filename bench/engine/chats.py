"""Sixty-four chats that a small model answers: short, long, CJK, emoji, code, several turns."""

from collections.abc import Iterator

Chat = list[dict[str, str]]

SHORT = (
    "What is the capital of France?",
    "Name three primary colours.",
    "Say hello.",
    "Why is the sky blue?",
    "What is 17 plus 25?",
    "Give me a synonym of 'quick'.",
    "Who wrote Hamlet?",
    "List the planets.",
    "Explain gravity in one sentence.",
    "What does HTTP stand for?",
    "Write a haiku about rain.",
    "Translate 'good morning' to Spanish.",
    "a",
    "??",
)
CJK = (
    "日本の首都はどこですか?",
    "请用一句话介绍长城。",
    "서울은 어떤 도시인가요?",
    "東京と京都の違いを教えてください。",
    "把下面这句话翻译成英文:今天天气很好。",
    "春眠不覚暁、処処聞啼鳥。この詩の作者は誰ですか。",
    "한국 음식 세 가지를 추천해 주세요.",
    "繁體字和简体字有什么区别?",
)
EMOJI = (
    "What does 🙂 mean?",
    "Continue: 🍎🍌🍒🍎🍌",
    "Describe this family: 👨‍👩‍👧‍👦",
    "Which flag is 🇯🇵 and which is 🇧🇷?",
    "Write a story with 🐉, 🏰 and 👑.",
    "🤔🤔🤔",
    "Skin tones: 👍🏻 👍🏽 👍🏿. How many thumbs?",
    "Zalgo: t̷h̶i̸s̵ is fine, and so is naïve café Ω≈ç√∫.",
)
CODE = (
    "Write a Python function that reverses a string.",
    "What does this print?\n```python\nprint([x * x for x in range(5) if x % 2])\n```",
    'Fix it:\n```c\nint main() { printf("hi\\n") return 0; }\n```',
    "Explain `SELECT name, COUNT(*) FROM users GROUP BY name HAVING COUNT(*) > 1;`",
    "Convert to JSON: name=Ada, age=36, langs=[en, fr]",
    "Write a bash line that counts lines in all *.txt files.",
    '```rust\nfn main() { let v = vec![1, 2, 3]; let w = v; println!("{:?}", v); }\n```\nWhy an error?',
    "Give a regex for an ISO date.",
    '<div class="a"><p>Hello</p>\n\n\t<!-- end --></div>\nWhat is this?',
    "def fib(n):\n    if n < 2:\n        return n\n    return",
)
TURNS: tuple[tuple[str, ...], ...] = (
    ("Hi, I'm Ada.", "Hello Ada! How can I help?", "What is my name?"),
    ("Pick a number.", "Seven.", "Double it.", "Fourteen.", "Add one."),
    ("Tell me a joke.", "Why did the hen cross the road?", "Why?"),
    ("I live in Oslo.", "Lovely city.", "Which country is that in?", "Norway.", "Its currency?"),
    ("Remember the word 'lantern'.", "I will.", "What's 2+2?", "4.", "Which word was it?"),
    ("你好!", "你好!有什么可以帮您?", "推荐一本书。"),
    ("Write `x = 1`.", "x = 1", "Now in JavaScript.", "let x = 1;", "And in Go?"),
    ("🎉", "Congratulations!", "Thanks! It's my birthday 🎂"),
    ("Name a fruit.", "Apple.", "Another.", "Pear.", "Another.", "Plum.", "Another."),
    ("Be brief.", "OK.", "What is photosynthesis?"),
)
_SUBJECTS = ("river", "library", "engine", "orchard", "harbour", "mountain", "printer", "market")
_VERBS = ("feeds", "hides", "repairs", "remembers", "sells", "carries", "measures", "paints")
_PLACES = ("near the old mill", "under the bridge", "behind the station", "across the bay", "in the north")


def report(sentences: int, seed: int) -> str:
    """A long text without a period: indices advance by strides that share no factor."""
    lines = []
    for i in range(sentences):
        subject, verb = _SUBJECTS[(3 * i + seed) % 8], _VERBS[(5 * i + i // 8 + seed) % 8]
        place, day = _PLACES[(2 * i + i // 5) % 5], 1 + (7 * i + seed) % 365
        lines.append(f"On day {day}, the {subject} {verb} item {i * i % 977} {place}.")
    return " ".join(lines)


def chats() -> Iterator[tuple[str, Chat]]:
    """(name, messages), the same ones in the same order every time."""
    for kind, texts in (("short", SHORT), ("cjk", CJK), ("emoji", EMOJI), ("code", CODE)):
        for i, text in enumerate(texts):
            yield f"{kind}-{i}", [{"role": "user", "content": text}]
    for i, turns in enumerate(TURNS):
        roles = ("user", "assistant")
        yield f"turns-{i}", [{"role": roles[j % 2], "content": text} for j, text in enumerate(turns)]
    for i, sentences in enumerate((12, 25, 40, 60, 80, 100)):
        text = report(sentences, i) + "\nSummarise this report."
        yield f"medium-{i}", [{"role": "user", "content": text}]
    for i, sentences in enumerate((190, 192, 195, 200, 205, 210, 215, 220)):
        text = report(sentences, 10 + i) + "\nWhich item was mentioned last?"
        yield f"long-{i}", [{"role": "user", "content": text}]
