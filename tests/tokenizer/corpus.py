"""Lines to tokenise: the same ones every time, of everything that has ever been trouble."""

import random
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = ["README.md", "docs/policy.md", "docs/server.md", "src/slipstream/models/gguf.py", "native/src/forward.cpp"]
PAGES += ["src/slipstream/server/static/style.css", "pyproject.toml", "scripts/setup"]

SENTENCES = [
    "The quick brown fox didn't jump; it'd rather sleep, and we'll see why they've let it. I'M SURE YOU'RE RIGHT.",
    "Zwölf Boxkämpfer jagen Viktor quer über den großen Sylter Deich – für 3,50 € pro Stück.",
    "Dès Noël où un zéphyr haï me vêt de glaçons würmiens, je dîne d’exquis rôtis de bœuf.",
    "El pingüino Wenceslao hizo kilómetros bajo exhaustiva lluvia y frío, ¡añoraba a su querido cachorro!",
    "À noite, vovô Kowalsky vê o ímã cair no pé do pinguim queixoso.",
    "Pchnąć w tę łódź jeża lub ośm skrzyń fig. Příliš žluťoučký kůň úpěl ďábelské ódy.",
    "Съешь же ещё этих мягких французских булок, да выпей чаю. Жебракують філософи при ґанку церкви.",
    "Ξεσκεπάζω την ψυχοφθόρα βδελυγμία, και ο Σίσυφος γελά.",
    "דג סקרן שט בים מאוכזב ולפתע מצא חברה; שָׁלוֹם עֲלֵיכֶם.",
    "نص حكيم له سر قاطع وذو شأن عظيم مكتوب على ثوب أخضر. الْعَرَبِيَّةُ ١٢٣٤٥",
    "این یک متن فارسی است و می‌خواهم آن را ببینم؛ ۱۲۳۴۵۶۷۸۹۰.",
    "ऋषियों को सताने वाले दुष्ट राक्षसों के राजा रावण का सर्वनाश हुआ। १२३४",
    "আমি বাংলায় গান গাই, আমি বাংলার গান গাই। ১২৩৪৫",
    "யாமறிந்த மொழிகளிலே தமிழ்மொழி போல் இனிதாவது எங்கும் காணோம்.",
    "เป็นมนุษย์สุดประเสริฐเลิศคุณค่า กว่าบรรดาฝูงสัตว์เดรัจฉาน ๑๒๓๔",
    "ສະບາຍດີ ຂ້ອຍຮັກເຈົ້າ. ជំរាបសួរ ខ្ញុំស្រលាញ់អ្នក។ မင်္ဂလာပါ ကမ္ဘာလောက",
    "いろはにほへと　ちりぬるを。色は匂へど散りぬるを、カタカナとﾊﾝｶｸも。",
    "天地玄黄，宇宙洪荒。日月盈昃，辰宿列張。“你好”，他说：‘再见’……",
    "다람쥐 헌 쳇바퀴에 타고파. 키스의 고유조건은 입술끼리 만나야 하고.",
    "𠮷野家で𩸽を食べる 㐂寿司 𰻞𰻞麺",
    "ქართული ენა ლამაზია. Հայերենը գեղեցիկ է։ ᏣᎳᎩ ᎦᏬᏂᎯᏍᏗ ꮳꮃꭹ ᚠᚢᚦᚨᚱᚲ",
    "Ðe ƿeorc ſwa Ǆ ǅ ǆ ﬁn ﬀ ß ẞ İ ı K Å ſ",
    "Tiếng Việt có dấu; ngôn ngữ tuyệt vời, được viết bằng chữ quốc ngữ.",
    "Ŝajnas ke sinjorino Ĥanĉo ĵus manĝis la ŭonon. Ω≈ç√∫˜µ≤≥÷ ∀x∈ℝ: ⌈x⌉ = −⌊−x⌋, α ∧ ¬β = ¬(¬α ∨ β)",
    "10 100 1000 10000 123456789 3.14159 1,000,000.00 ½ ¾ Ⅷ ⅻ ² ³ ₄ ① ㊿ 一二三 0x1F 1e-9",
    "if (x != NULL && y->z[3] <= 0xFF) { return ~x ^ y | z; } // don't",
    'for i in range(10):\n\tprint(f"{i:>5}")\n\n\n    # indented\r\n\t\t  mixed',
    "https://example.org/a_b-c/?q=1&r=%20#frag user.name+tag@mail.example C:\\temp\\new $HOME/~file",
    "👩‍👩‍👧‍👦 👍🏽 🏳️‍🌈 🇩🇪🇫🇷 ❤️ 1️⃣ 🧑🏿‍🚀 ☺︎ ☺️ 😀😃😄 🫠",
    "e\u0301 é ñ n\u0303 A\u030a Å \u1112\u1161\u11ab 한 q\u0307\u0323 q\u0323\u0307 Z̷̢a̴l̵g̶o̷",
    "<|im_start|>user\nHi<|im_end|>\n<s>[INST] <<SYS>> </s> <unk> <pad> <bos> <eos> <|endoftext|> <0x0A> <0xFF>",
    "<start_of_turn>user\n\n\n\n<end_of_turn>     <unused99><table><tr><td>▁▁▁x▁</td></tr>",
    "'s 't 're 've 'm 'll 'd 'S 'T 'RE 'VE 'M 'LL 'D ’s ’ll it''s ''' \"' '",
    "-- --- ---- ----- --> ==> === ==== ====== ###### ****** ////// ...... !!!??? ~~~ ___ ``` ```python",
    "AAAAaaaaBBBbbCcDDd HTTPServer iPhone camelCaseString SCREAMING_SNAKE_CASE kebab-case McDonald's O'Neill's",
]

SCRIPTS = [
    (0x20, 0x7E),
    (0xA0, 0x24F),
    (0x250, 0x36F),
    (0x370, 0x3FF),
    (0x400, 0x52F),
    (0x530, 0x5FF),
    (0x600, 0x77F),
    (0x780, 0x8FF),
    (0x900, 0xDFF),
    (0xE00, 0x109F),
    (0x10A0, 0x13FF),
    (0x1400, 0x1CFF),
    (0x1D00, 0x1FFF),
    (0x2000, 0x2BFF),
    (0x2C00, 0x2FFF),
    (0x3000, 0x33FF),
    (0x3400, 0x9FFF),
    (0xA000, 0xABFF),
    (0xAC00, 0xD7FF),
    (0xE000, 0xFAFF),
    (0xFB00, 0xFFFF),
    (0x10000, 0x11FFF),
    (0x12000, 0x16FFF),
    (0x17000, 0x1BFFF),
    (0x1D000, 0x1DFFF),
    (0x1E000, 0x1EFFF),
    (0x1F000, 0x1FAFF),
    (0x20000, 0x323AF),
    (0xE0000, 0x10FFFF),
]
BLANKS = " \t\n\v\f\r\x85\xa0\u1680\u2000\u2003\u2007\u200b\u2028\u2029\u202f\u205f\u2060\u3000\ufeff\x1c\x1f"
CONTROLS = [chr(code) for code in (*range(0x20), *range(0x7F, 0xA0), 0xAD, 0x200D, 0x202E, 0xFFFD, 0xFFFE, 0xFFFF)]
PIECES = ["a", "The", "é", "中", "1", "12", "'s", ".", "-", "=", "_", "▁", "😀", "\u0301", "\u200d", "and", "x1", "Ü"]


def lines(special: Sequence[str] = (), count: int = 5_400) -> list[str]:
    """Lines of all kinds, mixed. special: names of a vocabulary's special tokens, to be sprinkled over some."""
    chance = random.Random(6)
    every = [*_pages(), *(_invented(chance, special) for _ in range(count))]
    chance.shuffle(every)
    return [*SENTENCES, *filter(None, every)][:count]


def _pages() -> Iterator[str]:
    """The repository's text and code: single lines and whole paragraphs."""
    for page in PAGES:
        text = (ROOT / page).read_text(encoding="utf-8")
        yield from text.split("\n")
        yield from text.split("\n\n")[:20]


def _invented(chance: random.Random, special: Sequence[str]) -> str:
    kind = chance.randrange(6)
    if kind == 0:  # words of one script
        low, high = chance.choice(SCRIPTS)
        return "".join(
            _character(chance, low, high) if chance.random() < 0.85 else " " for _ in range(chance.randint(1, 40))
        )
    if kind == 1:  # of all scripts
        return "".join(_character(chance, *chance.choice(SCRIPTS)) for _ in range(chance.randint(1, 30)))
    if kind == 2:  # blanks of all kinds in rows
        return "".join(chance.choice(BLANKS) * chance.randint(1, 3) + chance.choice(["", *PIECES]) for _ in range(9))
    if kind == 3:  # control characters
        return "".join(chance.choice([*CONTROLS, *PIECES]) for _ in range(chance.randint(1, 12)))
    if kind == 4:  # rows of the same
        return "".join(
            chance.choice([*PIECES, " ", "\n", "\t"]) * chance.choice([1, 2, 3, 5, 17, 40]) for _ in range(5)
        )
    parts = [chance.choice([*special, *PIECES, " ", "  ", "\n"]) for _ in range(chance.randint(2, 9))]
    return "".join(part[: chance.randint(1, len(part))] if chance.random() < 0.1 else part for part in parts)


def _character(chance: random.Random, low: int, high: int) -> str:
    code = chance.randint(low, high)
    return "?" if 0xD800 <= code < 0xE000 else chr(code)
