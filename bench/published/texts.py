"""Texts on which tokenizers are compared: some of each kind that tokenizers treat apart, and random ones by seed."""
import random
import unicodedata

KINDS = {
    "prose": ["Hello there.", "The cat sat on the mat, didn't it?", "a", " a", "A ", "one two  three   four", "UPPER lower Title", "I'LL o'er 'twas we've CAN'T"],
    "numbers": ["1", "12", "123", "1234567", "3.14 and 2,718.28", "1e-10", " 7 77 777", "٣٤٥ ४५६ Ⅷ ½ ²³"],
    "spaces": [" ", "  ", "    ", "\n", "\n\n\n", "\t\t", "\r\n\r\n", " x", "  x", "x  ", "a  b", " \n \n ", "\u00a0x\u3000y\u2028z"],
    "code": ["def f(x):\n    return x**2\n", "if (a) {\n\tb();\n}\n", "x = [1, {'k': None}]  # note", "a->b::c<d>&&!e", "https://example.org/a_b?c=d&e=f#g"],
    "marks": ["▁", "a▁b", "▁▁a", " ▁ ", "<0x41>", "<unk>x", "e\u0301", "\u0301e", "q\u0323\u0307o\u0302\u0301"],
    "scripts": ["今日は良い天気です。", "我喜欢读书,很多书", "한국말 테스트", "مرحبا بالعالم", "שלום", "สวัสดี", "नमस्ते दुनिया", "Привет, мир", "Γειά σου", "việt nam", "ǅ İ ß ﬁ"],
    "emoji": ["🙂", "👨‍👩‍👦", "🏳️‍🌈", "👍🏽", "🇪🇺", "a🙂b"],
    "rare": ["\U00012345", "𓂀", "\u0530", "\ue005", "\U0010fffd", "\x01\x7f"],
}
WORDS = "the of and to in a is that for it as was with be by on not he his but at are this have from or had an they which one you were all her she there would their we him been has when who will no more if out so up said what about into them can only other time new some these two may first then do".split()
PIECES = ["'s", "'LL", "é", "ß", "中", "한", "ا", "ก", "3", "42", "2026", "²", ".", ",", "...", "?!", "--", "_", "/", "\\", "(", "}", "<", "|", "=", "#", "@", "😀", "\u0301", "\u200d", "\ufe0f", "▁"]
GAPS = [" "] * 6 + ["  ", "   ", "\n", "\n\n", "\r\n", "\t", "\u00a0", "\u3000"]
LINES = ["if", "for", "return", "x", "foo_bar", "Baz", "a.b(c)", "}", "{", "// z", 's := "t"', "let y: i32 = 0x1F;"]
RANGES = [(0x20, 0x7e), (0xa0, 0x24f), (0x370, 0x4ff), (0x5d0, 0x652), (0x905, 0x94d), (0xe01, 0xe3a), (0x1e00, 0x206f), (0x2200, 0x22ff), (0x3041, 0x30ff), (0x4e00, 0x9fff), (0xac00, 0xd7a3), (0xff01, 0xffbe), (0x12000, 0x12399), (0x1f300, 0x1f64f), (0x20000, 0x20100)]


def assigned(c):
    return unicodedata.category(chr(c)) not in ("Cn", "Cs")


def words(r, n):
    return "".join(r.choice([str, str.upper, str.title])(r.choice(WORDS)) + r.choice(GAPS + ["", ", ", ". "]) for _ in range(n))


def pieces(r, n):
    return "".join(r.choice(GAPS) if r.random() < 0.4 else r.choice(PIECES) for _ in range(n))


def scripts(r, n):
    out = ""
    while len(out) < n:
        low, high = r.choice(RANGES)
        out += "".join(chr(c) for c in (r.randint(low, high) for _ in range(r.randint(1, 6))) if assigned(c))
    return out


def lines(r, n):
    return "".join(" " * r.choice([0, 2, 4, 8]) + r.choice(LINES) + r.choice(["\n", "\n\n", ";\n", "\r\n", " "]) for _ in range(n // 3 + 1))


def digits(r, n):
    return "".join(r.choice(["", " ", "  ", ",", ".", "-", "x", "\n"]) + str(r.randint(0, 10 ** r.randint(1, 12))) for _ in range(n // 4 + 1))


def anything(r, n):
    return "".join(chr(c) for c in (r.randint(0, 0x1ffff) for _ in range(n)) if assigned(c))


def random_texts(seed, count):
    r = random.Random(seed)
    makers = [words, pieces, scripts, lines, digits, anything]
    return [(m.__name__, m(r, r.randint(1, 40))) for m in (makers[i % len(makers)] for i in range(count))]


def around(added, seed, count=60):
    """Texts with added tokens at their start, in their middle and at their end, whole and cut."""
    r = random.Random(seed)
    shapes = ["{a}", "x{a}y", " {a} ", "\n{a}\n", "{a}{b}", "{a} {b}", "{a}\u0301", "12{a}34", "漢{a}字", "  {a}  {b}x", "don{a}'t", "<|{a}|>", "the {a}the", "({a})[{b}]", "{a}. {b}!"]
    out = []
    for i in range(count if added else 0):
        out.append(("added", shapes[i % len(shapes)].format(a=r.choice(added), b=r.choice(added))))
    for a in added[:10]:
        out += [("cut", a[1:]), ("cut", a[:-1])]
    return out


def texts(added, seed, count):
    """Returns (kind, text) pairs without repetitions."""
    every = [(k, t) for k, ts in KINDS.items() for t in ts] + around(added, seed) + random_texts(seed, count)
    seen = set()
    return [(k, t) for k, t in every if t and not (t in seen or seen.add(t))]
