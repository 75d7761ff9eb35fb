"""Texts that try the scanners: of many scripts, of code, and of what stands at the edges of the regexes."""

FRAGMENTS = [
    *[" ", "  ", "     ", "\n", "\n\n", "\r\n", "\r", "\t", "\x0b", "\u00a0", "\u3000", "\u2028", "\x85"],
    *["'", "'s", "'S", "'ll", "'LL", "'re", "'Ve", "'d", "'\u017f", "''", "don't", "IT'S", "it's'x"],
    *[
        "a",
        "b",
        "A",
        "B",
        "fooBar",
        "HTTPServer",
        "word",
        "caf\u00e9",
        "\u00c9",
        "\u017f",
        "\u01c5",
        "\u02b0",
        "\u00aa",
    ],
    *["1", "12", "3456", "\u00bd", "\u0663", "\u2167", "\u4e00", "\u5341"],
    *["!", "-", "--", "/", "//", "://", "...", "\u2026", "\u201c", "\u00d7", "\u00f7", "(", "_", "$", "\u20ac"],
    *[
        "\u0436",
        "\u0416",
        "\u043c\u0438\u0440",
        "\u0391\u03b2",
        "\u0627",
        "\u0621",
        "\u05d0",
        "\u0928\u092e\u0938\u094d",
    ],
    *[
        "\u4e2d",
        "\u56fd\u8bed",
        "\u9fa5",
        "\u9fa6",
        "\u3400",
        "\u4dc0",
        "\u304b",
        "\u30ab",
        "\u30fb",
        "\u30fc",
        "\u3099",
    ],
    *["\u3002", "\uff0c", "\ud55c\uae00", "\u1100\u1161", "\u0e01\u0e33", "\U00020000", "\U0001d400", "\U0001d41a"],
    *["\u0301", "e\u0301", "\u0300\u0301", "\u200d", "\ufe0f", "\ufeff", "\U0001f600", "\U0001f468\u200d\U0001f469"],
    *["\x00", "\x07", "\x1c", "\x7f", "\u0378", "\ue000", "\U000e0001"],
]

SAMPLES = {
    "prose": "It's  the “first” of 1,234,567 days—and DON'T we'll know?  \n\n\tNext: naïve cafés, e.g. O'Neill's.\n"
    * 3,
    "code": (
        "def f(self, xs: list[int]) -> str:\n    # it's a comment // see http://x.y/z?q=1&r='s'\n"
        '    return f"{self.name!r}: {sum(xs):>10_d}" if xs else None\n\n\n\tclass HTTPServer2XMLParser {};\r\n'
        "    if (a->b != c[12345]) { ++i; }   \n;\n//\n/* */\n"
    )
    * 2,
    "json": '{"a": [1, 22.5e-10, null],\n  "b\\n": {"é": "x\\u00e9"},\r\n\t"long_key_name":"0123456789abcdef"}\n' * 3,
    "log": "2026-11-30T10:27:05.123456Z ERROR [thread-12] 0xdeadbeef: can't open '/var/log/x.log' (errno=2)\n" * 3,
    "spaces": "".join(" " * n + "\n" * (n % 3) + "\t" * (n % 2) + ("x", "1", "!", "")[n % 4] for n in range(70)),
    "chinese": "你好，世界！使用Python 3.11编写代码。“中文” ABC中Def中\n" * 4,
    "japanese": "こんにちは、カタカナ・テストーで12個の漢字。が\n" * 4,
    "korean": "안녕하세요, 세계! 한글 2026년\n" * 4,
    "russian": "Привет, мир! Это ТЕСТовый текст № 5.\n" * 4,
    "greek": "Γειά σου Κόσμε, ΝΈΑ!\n" * 4,
    "arabic": "مرحباً بالعالم، ١٢٣٤ وَهُوَ\n" * 4,
    "hebrew": 'שָׁלוֹם עולם, צה"ל\n' * 4,
    "hindi": "नमस्ते दुनिया। १२३४ क्ष\n" * 4,
    "thai": "สวัสดีชาวโลก ๑๒๓๔ กำ\n" * 4,
    "vietnamese": "Xin chào thế giới, Việt Nam đất nước ta ợi!\n" * 4,
    "emoji": "👨‍👩‍👧 👍🏽!❤️ 🇩🇪🇫 1️⃣😀😀\n" * 4,
}
