r"""How texts are cut into words before tokens are merged, by the file's `tokenizer.ggml.pre`.

No token crosses a cut, so a cut in another place means other tokens. The expressions are those that llama.cpp knows for
these names. `\p{L}`, `\p{M}`, `\p{N}`, `\p{P}`, `\p{S}` and `\s` mean the tables of `unicode_classes`; so do
`\p{Upper}`, all letters but a-z, and `\p{Lower}`, all but A-Z.
"""

import re
from dataclasses import dataclass, replace

from slipstream.tokenizer.unicode_classes import (
    DEEPSEEK_LETTERS,
    LETTERS,
    MARKS,
    NUMBERS,
    PUNCTUATION,
    SYMBOLS,
    WHITESPACE,
    as_class,
)

_CLASSES = {
    r"\p{L}": as_class(LETTERS),
    r"\p{Upper}": as_class(LETTERS.replace(" 61-7a", "", 1)),
    r"\p{Lower}": as_class(LETTERS.removeprefix("41-5a ")),
    r"\p{M}": as_class(MARKS),
    r"\p{N}": as_class(NUMBERS),
    r"\p{P}": as_class(PUNCTUATION),
    r"\p{S}": as_class(SYMBOLS),
    r"\s": as_class(WHITESPACE),
}
_PART = re.compile(r"\\p\{\w+\}|\\.|.", re.DOTALL)


@dataclass(frozen=True, slots=True)
class PreTokenizer:
    """What one `tokenizer.ggml.pre` stands for.

    splits:         expressions, each applied to the words that those before it have left: what matches is a word, and
                    what lies between two matches is one
    ignore_merges:  a word that is a token is that token, whatever the merges would make of it
    add_bos:        whether a text begins with BOS, where the file does not say
    byte_level:     tokens are spelled in GPT-2's alphabet of bytes; otherwise as text, with U+2581 for a space
    newline_tokens: a run of line feeds that is a token is that token (Gemma 4)
    """

    splits: tuple[str, ...]
    ignore_merges: bool = False
    add_bos: bool = False
    byte_level: bool = True
    newline_tokens: bool = False

    def expressions(self) -> list[str]:
        """`splits` for a library with Oniguruma's syntax, free of its own idea of Unicode."""
        return [_explicit(split) for split in self.splits]


def _explicit(expression: str) -> str:
    """Write the classes out, with brackets around those that do not stand in brackets."""
    parts, inside = [], False
    for part in _PART.findall(expression):
        if part in _CLASSES:
            parts.append(_CLASSES[part] if inside else f"[{_CLASSES[part]}]")
        elif part == r"\S":
            parts.append(f"[^{as_class(WHITESPACE)}]")
        else:
            parts.append(part)
            inside = part == "[" or (inside and part != "]")
    return "".join(parts)


def _either(*alternatives: str) -> str:
    return "|".join(alternatives)


_CONTRACTION = r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])"
_BEFORE_WORD = r"[^\r\n\p{L}\p{N}]?"
_WORD = _BEFORE_WORD + r"\p{L}+"
_CASED = (_BEFORE_WORD + r"\p{Upper}*\p{Lower}+", _BEFORE_WORD + r"\p{Upper}+\p{Lower}*")
_DIGIT = r"\p{N}"
_DIGITS = r"\p{N}{1,3}"
_OTHERS = r" ?[^\s\p{L}\p{N}]+"
_OTHERS_TO_LINE_END = _OTHERS + r"[\r\n]*"
_LAST_BLANKS = _either(r"\s+(?!\S)", r"\s+")
_BLANKS = _either(r"\s*[\r\n]+", _LAST_BLANKS)
_LINES = r"[^\n]+|[\n]+"
_CJK = "[一-龥぀-ゟ゠-ヿ]+"
# Blanks among these code points are left out: llama.cpp sees every blank as an ASCII one.
_EAST_ASIAN = r"(?:(?!\s)[一-龥ࠀ-一가-퟿])+"
_DEEPSEEK_WORDS = (
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+",
    r"[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+",
)
_BLOOM = r" ?[^(\s|.,!?…。，、।۔،)]+"

_GPT2 = PreTokenizer(
    (_either("'s|'t|'re|'ve|'m|'ll|'d", r" ?\p{L}+", r" ?\p{N}+", _OTHERS, r"\s+(?!\S)"),),
)
_SINGLE_DIGITS = PreTokenizer((_DIGIT, *_GPT2.splits))
_DEFAULT = PreTokenizer((r"[\p{P}$+<=>\^~|]+", *_GPT2.splits, r"\p{N}+", "[0-9][0-9][0-9]"))
_FALCON = PreTokenizer((r"[\p{P}$+<=>\^~|`]+", *_GPT2.splits, "[0-9][0-9][0-9]"))
_SMAUG = PreTokenizer((_either(_CONTRACTION, _WORD, _DIGITS, _OTHERS_TO_LINE_END, _BLANKS),))
_LLAMA3 = replace(_SMAUG, ignore_merges=True, add_bos=True)
_QWEN2 = PreTokenizer((_either(_CONTRACTION, _WORD, _DIGIT, _OTHERS_TO_LINE_END, _BLANKS),))
_QWEN35 = PreTokenizer(
    (
        _either(
            _CONTRACTION,
            _BEFORE_WORD + r"[\p{L}\p{M}]+",
            _DIGIT,
            r" ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*",
            _BLANKS,
        ),
    )
)
_GPT4O = PreTokenizer(
    (_either(*(word + _CONTRACTION + "?" for word in _CASED), _DIGITS, _OTHERS + r"[\r\n/]*", _BLANKS),)
)
_TEKKEN = PreTokenizer((_either(*_CASED, _DIGIT, _OTHERS + r"[\r\n/]*", _BLANKS),), ignore_merges=True, add_bos=True)
_DEEPSEEK_LLM = PreTokenizer(
    (
        r"[\r\n]",
        rf"\s?[{as_class(DEEPSEEK_LETTERS)}]+",
        r"\s?[!-/:-~！-／：-～‘-‟、-。]+",
        r"(?<!\s)\s++\z",  # written so that a long row of blanks is not tried from each of its blanks
        _EAST_ASIAN,
        r"\p{N}+",
    )
)
_DEEPSEEK_CODER = PreTokenizer((r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _EAST_ASIAN, _DIGIT))
_DEEPSEEK3 = PreTokenizer((_DIGITS, _CJK, _either(*_DEEPSEEK_WORDS, r" ?[\p{P}\p{S}]+[\r\n]*", _BLANKS)))
_SPARK = PreTokenizer((_DIGITS, _CJK, _either(*_DEEPSEEK_WORDS, r" ?[\p{P}\p{S}]+", r"[\r\n]", _LAST_BLANKS), _DIGIT))
_YOUTU = PreTokenizer(
    (
        _either("[가-힣ㄱ-ㆎ]+", "[！…“”‘’—：；，、-〿︰-﹏]+", "[ㄅ-ㄯ]+", _CJK),
        _either(
            _BEFORE_WORD + r"[\p{L}\p{M}]+" + _CONTRACTION + "?",
            _DIGIT,
            _OTHERS + r"[\r\n/]*",
            _BLANKS,
        ),
    ),
    ignore_merges=True,
)
_BAILING = PreTokenizer(
    (
        _either(
            "'(?:[sSdDmMtT]|[lL][lL]|[vV][eE]|[rR][eE])",
            _WORD,
            _DIGIT,
            _OTHERS_TO_LINE_END,
            r"\s*[\r\n]",
            _LAST_BLANKS,
        ),
    )
)
_SEED_CODER = PreTokenizer((_either(_CONTRACTION, _WORD, _DIGIT, r" ?[^\s\p{L}\p{N}\r\n]+", _BLANKS),))
_UFAKZEKA = PreTokenizer((_either(_WORD, _DIGIT, _OTHERS_TO_LINE_END, _BLANKS),))
_EXAONE_MOE = PreTokenizer(
    (
        _either(
            _CONTRACTION,
            _BEFORE_WORD + r"(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+",
            _DIGIT,
            _OTHERS + r"[\r\n/]?",
            r"\s*[\r\n]",
            _LAST_BLANKS,
        ),
    )
)
_MINICPM5 = PreTokenizer(
    (_DIGITS, _either(_CONTRACTION, _WORD, r"\p{N}+", _OTHERS_TO_LINE_END, _BLANKS)), ignore_merges=True
)
_JAIS2 = PreTokenizer(
    (
        _either(
            _CONTRACTION,
            _WORD,
            _DIGITS,
            _OTHERS_TO_LINE_END,
            r"\s*[\r\n]+",
            *(rf"\s{{{count}}}(?!\S)" for count in (512, 256, 128, 64, 32, 16, 8, 4, "1,2")),
            r"\s{1}",
        ),
    )
)

_NAMES = {
    "default": _DEFAULT,
    "llama3 llama-v3 llama-bpe falcon3 falcon-h1 pixtral midm-2.0 lfm2": _LLAMA3,
    "smaug-bpe dbrx chatglm-bpe": _SMAUG,
    "glm4 glm5": replace(_SMAUG, ignore_merges=True),
    "gpt-2 phi-2 mpt olmo jais gigachat a.x-4.0 mellum exaone4 trillion granite-docling": _GPT2,
    "smollm starcoder refact command-r codeshell exaone minerva-7b mellum2": _SINGLE_DIGITS,
    "falcon": _FALCON,
    "qwen2 deepseek-r1-qwen kormo stablelm2 megrez hunyuan solar-open grok-2": _QWEN2,
    "qwen35": _QWEN35,
    "gpt-4o llama4 kanana2 talkie minimax-m2": _GPT4O,
    "tekken": _TEKKEN,
    "deepseek-llm": _DEEPSEEK_LLM,
    "deepseek-coder": _DEEPSEEK_CODER,
    "deepseek-v3 hunyuan-dense joyai-llm hy_v4": _DEEPSEEK3,
    "spark2_5": _SPARK,
    "youtu": _YOUTU,
    "bailingmoe bailingmoe2 llada-moe": _BAILING,
    "seed-coder": _SEED_CODER,
    "ufakzeka": _UFAKZEKA,
    "exaone-moe": _EXAONE_MOE,
    "minicpm5": _MINICPM5,
    "jais-2": _JAIS2,
    "poro-chat bloom gpt3-finnish": PreTokenizer((_BLOOM,)),
    "viking": PreTokenizer((_BLOOM, _DIGIT)),
    "laguna": PreTokenizer((_LINES, *_QWEN2.splits)),
    "sarvam-moe": PreTokenizer((_LINES,), byte_level=False),
}
PRE_TOKENIZERS = {name: meaning for names, meaning in _NAMES.items() for name in names.split()}
"""By `tokenizer.ggml.pre`. Not among them: what serves embedding models only, and rules that are no expressions."""

GEMMA4 = PreTokenizer((_LINES,), add_bos=True, byte_level=False, newline_tokens=True)
"""The one that belongs to `tokenizer.ggml.model` being "gemma4"."""
