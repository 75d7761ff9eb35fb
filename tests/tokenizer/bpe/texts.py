"""Texts of many scripts and kinds, and strategies that make more of them."""

import json

from hypothesis import strategies as st

from tests.tokenizer.scan.texts import FRAGMENTS, SAMPLES

CONTROL = [
    *[
        "<|im_start|>",
        "<|im_end|>",
        "<|endoftext|>",
        "<|begin_of_text|>",
        "<|eot_id|>",
        "<s>",
        "</s>",
        "<unk>",
        "<bos>",
    ],
    *["<think>", "</think>", "<tool_call>", "<｜User｜>", "<｜begin▁of▁sentence｜>", "<start_of_turn>", "[multimodal]"],
    *["<unused7>", "<table>", "</td>", "<|", "|>", "<", "▁", "▁▁", "<0x41>"],
]
_SENTENCE = (
    "the quick brown fox jumps over a lazy dog; tokenizer throughput determines latency unfortunately "
    "3.14159 0x7fff Straßenbahnhaltestelle déjà vu año niño Привет мир добрый день γειά σου κόσμε שלום "
    "עולם مرحبا بالعالم 2026-11-30 नमस्ते दुनिया สวัสดีชาวโลก こんにちは世界 カタカナ 안녕하세요 你好世界 語言模型 "
    "xin chào thế giới internationalization Pneumonoultramicroscopic def return import self.__init__"
)
WORDS = _SENTENCE.split()

CORPUS = {
    **SAMPLES,
    "english": "It was a bright day in April, and the clocks weren't striking; Mr. O'Brien said so himself.\n\n" * 5,
    "german": "Die Straßenbahnhaltestelle »Am Öhringer Weg« liegt 1.200 m entfernt – nicht wahr?\n" * 3,
    "vietnamese": "Chào thế giới! Tiếng Việt có nhiều dấu thanh: ngã, hỏi, sắc, huyền, nặng.\n" * 3,
    "russian": "Съешь же ещё этих мягких французских булок, да выпей чаю. 1234 руб.\n" * 3,
    "greek": "Ξεσκεπάζω την ψυχοφθόρα βδελυγμία· τι κάνεις;\n" * 3,
    "arabic": "السلام عليكم ورحمة الله، كيف حالُكَ اليومَ؟ ١٢٣٤\n" * 3,
    "hebrew": "שָׁלוֹם עוֹלָם, מה שלומך היום?\n" * 3,
    "hindi": "नमस्ते दुनिया, आप कैसे हैं? क्षत्रिय ज्ञान।\n" * 3,
    "thai": "สวัสดีชาวโลก วันนี้อากาศดีมากๆ น้ำตก\n" * 3,
    "japanese": "吾輩は猫である。名前はまだ無い。カタカナとひらがな、ﾊﾝｶｸも。\n" * 3,
    "korean": "안녕하세요 세계! 오늘은 날씨가 좋습니다. 각 글자\n" * 3,
    "decomposed": "\u1112\u1161\u11ab\u1100\u1173 e\u0301 a\u0323\u0302 A\u030a \u2126 \u212b \ufb01 q\u0307\u0323\n"
    * 3,
    "chinese": "大型语言模型的推理服务需要很高的吞吐量，同时延迟要低。第12章：分词器。繁體中文也要測試！\n" * 5,
    "rare han": "龘靐齉齾爨麤灪龖厵滟爩癵籱饢驫鲡鹂鸞麣纞虋 𠀀𠀁𪚥 㐀㐁\n" * 3,
    "emoji": "👍🏽👩‍👩‍👧‍👦🇫🇷🏳️‍🌈 ❤️‍🔥 1️⃣ 🧑🏿‍🚀👋🏻!! 😀😀😀😀😀😀\n" * 3,
    "log": "2026-11-30T10:27:05.123Z INFO  [worker-7] GET /v1/models?id=42 200 13.7ms \x1b[32mok\x1b[0m\n" * 5,
    "nested json": json.dumps({"a": [{"k" * n: [n] * n, "ü": None} for n in range(8)]}, indent=4),
    "base64": "TWFuIGlzIGRpc3Rpbmd1aXNoZWQsIG5vdCBvbmx5IGJ5IGhpcyByZWFzb24sIGJ1dCBieSB0aGlz==" * 8,
    "whitespace": " " * 700
    + "\n" * 70
    + "\t" * 70
    + " \n \t\r\n" * 30
    + "\u00a0" * 20
    + "\u3000" * 20
    + "x"
    + " " * 17,
    "control": "".join(f"{a}{b} " for a, b in zip(CONTROL, CONTROL[1:] + CONTROL[:1], strict=True)),
    "letters": "a" * 1000 + "ab" * 500 + "abc" * 300 + "=" * 300 + "-" * 301 + "aA" * 100,
    "marks": "e" + "\u0300" * 500 + "\u0301\u0323" * 100,
    "bytes": "".join(map(chr, range(0x180))),
    "empty": "",
}

STRINGS = st.one_of(
    st.lists(st.sampled_from([*FRAGMENTS, *WORDS, *CONTROL, " "]), max_size=40).map("".join),
    st.lists(st.sampled_from(WORDS), max_size=20).map(" ".join),
    st.lists(st.sampled_from([*FRAGMENTS, *WORDS]), min_size=1, max_size=3).flatmap(
        lambda few: st.lists(st.sampled_from(few), max_size=80).map("".join)
    ),
    st.text(st.characters(codec="utf-8"), max_size=60),
    st.text(st.characters(max_codepoint=0x7F), max_size=150),
    st.text("ehllo wrdĊ\u0301\u0323中文的", max_size=100),
)
