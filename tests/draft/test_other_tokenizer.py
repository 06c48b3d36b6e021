"""A draft model that cuts texts differently."""

from collections.abc import Sequence
from functools import cache
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slipstream import Engine
from slipstream.core.params import SamplingParams
from slipstream.core.protocols import Growth, Logits, Vocabulary
from slipstream.core.tree import Draft
from slipstream.draft import OtherTokenizerDrafter
from slipstream.draft.other_tokenizer import Reading, spell, spell_after
from slipstream.errors import UnsupportedModelError
from slipstream.policy import FixedLength
from slipstream.tokenizer import Tokenizer, load_tokenizer
from tests.fakes import ByteVocabulary, FakeModel, FakeSession
from tests.helpers import GREEDY, View, accept_first
from tests.tokenizer import vocabularies

SAMPLED = SamplingParams(temperature=1.0, top_p=1.0, min_p=0.0, seed=9)
LETTERS = b"abcdef"


class PieceVocabulary(ByteVocabulary):
    """All bytes, an end and a beginning as `ByteVocabulary` has them, and pieces, of which a text gets the longest."""

    def __init__(self, pieces: Sequence[bytes], bos: int | None = None, adds_space: bool = False) -> None:
        super().__init__(bos)
        self.pieces, self.adds_space = list(pieces), adds_space
        self.size = 258 + len(pieces)
        self._ids = {piece: 258 + index for index, piece in enumerate(pieces)}
        self._longest = max(map(len, pieces), default=1)

    def tokenize(self, text: str, *, add_bos: bool, parse_special: bool) -> list[int]:
        tokens: list[int] = [257] if add_bos and self.bos is not None else []
        for index, part in enumerate(text.split("<end>") if parse_special else [text]):
            tokens += [256] if index else []
            tokens += self._cut((" " + part if self.adds_space and part else part).encode())
        return tokens

    def _cut(self, data: bytes) -> list[int]:
        tokens, start = [], 0
        while start < len(data):
            sizes = range(min(self._longest, len(data) - start), 0, -1)
            size = next(size for size in sizes if size == 1 or data[start : start + size] in self._ids)
            tokens.append(self._ids.get(data[start : start + size], data[start]))
            start += size
        return tokens

    def token_bytes(self, token: int) -> bytes:
        return self.pieces[token - 258] if token >= 258 else super().token_bytes(token)

    def token_name(self, token: int) -> str:
        return super().token_name(token) if token < 258 else self.pieces[token - 258].decode(errors="replace")


PAIRS = PieceVocabulary([bytes([one, other]) for one in LETTERS for other in LETTERS])
LONG = PieceVocabulary([*PAIRS.pieces, *[bytes(five) for five in product(b"ab", repeat=5)]])
"""A fifth letter can change the two tokens before it."""
BYTES = ByteVocabulary()


class TextModel(FakeModel):
    """Says letters by the last two before, and gives any token the probability of its letters one by one.

    whole: how much likelier than that tokens of several letters are, as they are to models that learned from texts
    """

    def __init__(self, vocabulary: ByteVocabulary, *, whole: float = 0.0, **more: int) -> None:
        super().__init__(vocabulary, **more)  # type: ignore[arg-type]
        self._whole = whole
        self._pieces = [vocabulary.token_bytes(token) for token in range(vocabulary.size)]

    def row(self, context: Sequence[int]) -> Logits:
        before = b"".join([self._pieces[token] for token in context[-3:]])[-2:]
        key = tuple(before)
        if key not in self._table:
            self._table[key] = np.array([self._logit(before, piece) for piece in self._pieces], np.float32)
        return self._table[key]

    def _logit(self, before: bytes, piece: bytes) -> float:
        if not piece or any(letter not in LETTERS for letter in piece):
            return -50.0
        logit = self._whole * (len(piece) - 1)
        for letter in piece:
            logit += letter_logits(before)[LETTERS.index(letter)]
            before = before[-1:] + bytes([letter])
        return logit


@cache
def letter_logits(before: bytes) -> list[float]:
    logits = 3 * np.random.default_rng(list(before)).standard_normal(len(LETTERS))
    return (logits - np.log(np.exp(logits).sum())).tolist()


def drafter_for(view: View, model: FakeModel, target: Vocabulary) -> OtherTokenizerDrafter:
    drafter = OtherTokenizerDrafter(model, target)
    drafter.begin(view, 0)
    return drafter


def grow(drafter: OtherTokenizerDrafter, view: View, steps: int, siblings: int = 1) -> Draft:
    draft = Draft()
    for step in range(steps):
        limit = steps - step if siblings == 1 else siblings
        drafter.extend([Growth(view, draft, limit, siblings)])
    return draft


def text_of(vocabulary: Vocabulary, tokens: Sequence[int]) -> bytes:
    return b"".join([vocabulary.token_bytes(token) for token in tokens])


# --- what it drafts


@pytest.mark.parametrize("params", [GREEDY, SAMPLED])
def test_what_begins_alike_is_drawn_with_the_target_s_noise(params: SamplingParams) -> None:
    """Summed over the pairs that begin with a letter, the draft model's probabilities are the target's here."""
    target, model = TextModel(BYTES), TextModel(PAIRS)
    drafter = OtherTokenizerDrafter(model, BYTES)
    for seed in range(40):
        text = list(np.random.default_rng(seed).choice(list(LETTERS), 10))
        view = View(text, params)
        drafter.begin(view, 0)
        [first, *_] = grow(drafter, view, 1).tokens
        assert first == view.sampler.choose(target.row(text), len(text))
        drafter.end(view)


def test_a_token_of_several_brings_them_all_in_one_step() -> None:
    model = TextModel(PAIRS, whole=5.0)
    view = View(list(b"abc"), GREEDY)
    drafter = drafter_for(view, model, BYTES)
    before = model.forwards
    draft = Draft()
    drafter.extend([Growth(view, draft, 8)])
    assert (len(draft), model.forwards - before) == (2, 1)
    assert draft.is_chain


def test_what_found_no_room_comes_in_the_next_step() -> None:
    view = View(list(b"abc"), GREEDY)
    drafter = drafter_for(view, TextModel(PAIRS, whole=5.0), BYTES)
    whole = grow(drafter, view, 4).tokens
    narrow = Draft()
    for _ in range(4):
        drafter.extend([Growth(view, narrow, 1)])
    assert narrow.tokens == whole[:4]


class Scripted(FakeModel):
    """Says one text, byte by byte, whatever came before; then it ends."""

    def __init__(self, text: bytes, begins_at: int, vocabulary: ByteVocabulary = BYTES) -> None:
        super().__init__(vocabulary)
        self._text, self._begins_at = text, begins_at

    def row(self, context: Sequence[int]) -> Logits:
        row = np.zeros(self.vocabulary.size, np.float32)
        place = len(context) - self._begins_at
        row[self._text[place] if 0 <= place < len(self._text) else 256] = 30.0
        return row


def test_a_word_that_is_spelled_anew_branches_a_tree() -> None:
    view = View(list(b"xy"), GREEDY, vocabulary_size=PAIRS.size)
    tree = grow(drafter_for(view, Scripted(b"abcd", 2), PAIRS), view, 4, siblings=3)
    assert tree.path_tokens(tree.tip) == PAIRS.tokenize("abcd", add_bos=False, parse_special=False)
    assert tree.tokens[0] == ord("a"), "what was proposed before stays"


def test_a_chain_ends_there_and_later_ones_wait_for_the_end_of_a_word() -> None:
    drafter = OtherTokenizerDrafter(Scripted(b"abcd" * 9, 2), PAIRS)
    drafts = []
    for _ in range(20):
        view = View(list(b"xy"), GREEDY, vocabulary_size=PAIRS.size)
        drafter.begin(view, 0)
        drafts.append(grow(drafter, view, 4).tokens)
        drafter.end(view)
    assert drafts[0] == list(b"a")
    assert drafts[-1] == PAIRS.tokenize("abcdabcd", add_bos=False, parse_special=False)


def test_the_end_of_a_text_ends_its_draft() -> None:
    view = View(list(b"xy"), GREEDY)
    assert grow(drafter_for(view, Scripted(b"ab", 2), BYTES), view, 5).tokens == list(b"ab")


def test_a_character_is_drafted_when_it_is_whole() -> None:
    """Its three bytes are three tokens of the draft model's and one of the target's."""
    target = PieceVocabulary(["€".encode(), "é".encode()])
    view = View(list(b"xy"), GREEDY, vocabulary_size=target.size)
    model = Scripted("€é".encode(), 2)
    draft = Draft()
    drafter = drafter_for(view, model, target)
    before = model.forwards
    drafter.extend([Growth(view, draft, 4)])
    assert (draft.tokens, model.forwards - before) == ([258], 3)
    drafter.extend([Growth(view, draft, 3)])
    assert draft.tokens == [258, 259]


def test_a_text_that_ends_within_a_character_goes_on_within_it() -> None:
    view = View([*b"xy", 0xE2, 0x82], GREEDY)
    pieces = PieceVocabulary(["€".encode(), "é".encode(), "€é".encode()])
    model = FakeModel(pieces, sharpness=0.0)
    model.row = lambda context: np.eye(pieces.size, dtype=np.float32)[[260, ord("z")]].sum(0)  # type: ignore[method-assign]
    assert grow(drafter_for(view, model, BYTES), view, 1).tokens == [0xAC]
    draft = Draft()
    drafter_for(view, model, BYTES).extend([Growth(view, draft, 8)])
    assert draft.tokens == [0xAC, 0xC3, 0xA9]


# --- sessions


def test_a_step_costs_one_forward_for_all_sequences() -> None:
    model = TextModel(PAIRS)
    drafter = OtherTokenizerDrafter(model, BYTES)
    views = [View(list(b"abcdef"), SAMPLED), View(list(b"fedcbaabc"), SAMPLED)]
    for view in views:
        drafter.begin(view, 0)
    drafts = [Draft(), Draft()]
    drafter.extend([Growth(view, draft, 4) for view, draft in zip(views, drafts, strict=True)])
    assert model.forwards == 1
    assert all(len(draft) for draft in drafts)
    alone = [grow(drafter_for(view, model, BYTES), view, 1).tokens for view in views]
    assert [draft.tokens[0] for draft in drafts] == [tokens[0] for tokens in alone]


def test_a_long_text_that_was_missed_keeps_nobody_from_drafting() -> None:
    model = TextModel(PAIRS, max_rows=512, context_length=4096)
    drafter = OtherTokenizerDrafter(model, BYTES)
    views = [View(list(b"abcdef"), SAMPLED), View(list(b"fedcbaabc" * 200), SAMPLED)]
    for view in views:
        drafter.begin(view, 0)
    [alone] = [grow(drafter_for(views[1], model, BYTES), views[1], 1).tokens]
    lengths = []
    while drafter.lag(views[1]) > 1:
        drafts, before = [Draft(), Draft()], model.forwards
        drafter.extend([Growth(view, draft, 4) for view, draft in zip(views, drafts, strict=True)])
        assert model.forwards - before == 1
        lengths.append([len(draft) for draft in drafts])
    assert all(short for short, _ in lengths)
    assert [bool(long) for _, long in lengths] == [False] * (len(lengths) - 1) + [True]
    assert len(lengths) > 2
    assert drafts[1].tokens == alone


def test_a_later_sequence_reuses_the_common_prefix() -> None:
    model = TextModel(PAIRS, max_rows=4)
    first, second = View(list(b"abcdefabcdefabcdef")), View(list(b"abcdefabcdefabfedc"))
    drafter = drafter_for(first, model, BYTES)
    grow(drafter, first, 1)
    drafter.end(first)
    before = model.forwards
    drafter.begin(second, 0)
    assert drafter.lag(second) <= 4
    grow(drafter, second, 1)
    assert model.forwards - before == 1


@settings(max_examples=60, deadline=None)
@given(
    st.integers(0, 1000),
    st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), max_size=8),
    st.integers(1, 30),
    st.sampled_from([1, 3, 100]),
    st.sampled_from([1, 3]),
)
def test_the_session_feeds_whatever_it_lacks(
    seed: int, rounds: list[tuple[int, int]], prompt_length: int, deepest: int, siblings: int
) -> None:
    """After any history a draft is what a new drafter, which has read the text in one piece, would say of the text.

    Up to how the text is cut, so the draft model here looks at letters.
    """
    model = TextModel(LONG, max_rows=7, deepest_rollback=deepest)
    random = np.random.default_rng(seed)
    view = View(random.choice(list(b"ab"), prompt_length).tolist(), SAMPLED)
    drafter = drafter_for(view, model, BYTES)
    for steps, accepted in rounds:
        draft = grow(drafter, view, steps, siblings)
        fresh = OtherTokenizerDrafter(TextModel(LONG), BYTES)
        fresh.begin(view, 0)
        assert draft.tokens == grow(fresh, view, steps, siblings).tokens
        reading = drafter._readings[view.id]
        session = reading.placed.session
        assert isinstance(session, FakeSession)
        assert session.tokens == [*reading.tokens, *reading.drafted][: session.length]
        assert session.length >= len(reading.tokens) or not steps
        chain = draft.path_tokens(draft.tip)
        accepted = min(accepted, len(chain))
        view.tokens += [*chain[:accepted], int(random.choice(list(b"ab")))]
        if siblings == 1:
            drafter.observe(view, draft, accept_first(draft, accepted), None)  # type: ignore[arg-type]
    drafter.end(view)
    drafter.close()
    assert model.open_sessions == 0
    assert model.closed


def test_tokens_that_more_text_has_changed_are_taken_back() -> None:
    view = View(list(b"cdabab"), GREEDY)
    drafter = drafter_for(view, TextModel(LONG), BYTES)
    grow(drafter, view, 3)
    view.tokens += b"ac"
    grow(drafter, view, 1)
    session = drafter._readings[view.id].placed.session
    assert isinstance(session, FakeSession)
    assert text_of(LONG, session.tokens) == b"cdababac"
    assert session.tokens == LONG.tokenize("cdababac", add_bos=False, parse_special=False)


def test_a_full_context_ends_drafting_and_breaks_nothing() -> None:
    view = View(list(b"abcdefa"), SAMPLED)
    drafter = drafter_for(view, TextModel(BYTES, context_length=8), PAIRS)
    assert len(grow(drafter, view, 6, siblings=3)) > 0
    view.tokens += b"bc"
    assert len(grow(drafter, view, 4)) == 0


def test_a_text_of_nothing_is_not_gone_on_with() -> None:
    view = View([257], GREEDY)
    drafter = drafter_for(view, TextModel(BYTES), ByteVocabulary(bos=257))
    assert len(grow(drafter, view, 2)) == 0
    drafter = drafter_for(view, TextModel(ByteVocabulary(bos=257)), ByteVocabulary(bos=257))
    assert len(grow(drafter, view, 2)) == 2


def test_a_model_without_rollback_is_refused() -> None:
    with pytest.raises(UnsupportedModelError, match="cannot take tokens back"):
        OtherTokenizerDrafter(FakeModel(rollback=False), BYTES)


# --- texts


def test_control_tokens_are_read_by_their_names() -> None:
    class Other(PieceVocabulary):
        def tokenize(self, text: str, **more: bool) -> list[int]:
            return self._cut(text.encode())

    committed = [257, *b"ab", 256, *b"cd"]
    same, other = Reading(ByteVocabulary(257), PieceVocabulary([b"ab"], 257)), Reading(BYTES, Other([b"end"]))
    same.update(committed)
    assert same.tokens == [257, 258, 256, *b"cd"], "the same name is the same token, and a BOS is its own"
    other.update(committed[1:])
    assert text_of(Other([b"end"]), other.tokens) == b"ab<end>cd"


def test_only_the_end_of_a_text_is_read_again() -> None:
    class Counting(PieceVocabulary):
        read = 0

        def tokenize(self, text: str, **more: bool) -> list[int]:
            self.read += len(text)
            return super().tokenize(text, **more)

    own = Counting([bytes(pair) for pair in (b"ab", b"cd", b"ef")])
    reading, committed = Reading(BYTES, own), list(b"abcdef" * 200)
    reading.update(committed)
    own.read = 0
    for _ in range(50):
        committed += b"abcdef"
        reading.update(committed)
    assert own.read < 50 * 40
    assert reading.tokens == PieceVocabulary(own.pieces).tokenize("abcdef" * 250, add_bos=False, parse_special=False)


def test_a_space_that_the_vocabulary_adds_comes_once() -> None:
    spaced = PieceVocabulary([b" ab", b"ab", b"cd", b" "], adds_space=True)
    reading, committed = Reading(BYTES, spaced), list(b"ab")
    reading.update(committed)
    for letter in b"cdab abcdcdababab cd" * 3:
        committed.append(letter)
        reading.update(committed)
    assert reading.tokens == spaced.tokenize(bytes(committed).decode(), add_bos=False, parse_special=False)


def test_a_space_that_the_vocabulary_adds_is_no_text() -> None:
    spaced = PieceVocabulary([b" ab", b" cd", b"ab", b" "], adds_space=True)
    assert spell(spaced, "ab cd", parse_special=False) == ([258, 259], [2, 5])
    assert text_of(spaced, spell_after(spaced, "x", "ab cd")) == b"ab cd"
    assert spell_after(PieceVocabulary([b"ab"]), "a", "b") == list(b"b"), "the target has decided against ab"


@pytest.fixture(scope="module")
def tokenizers(tmp_path_factory: pytest.TempPathFactory) -> list[Tokenizer]:
    """Byte-level and SentencePiece, each with a control token that the other lacks."""
    folder = tmp_path_factory.mktemp("vocabularies")
    merges = ["t h", "th e", "Ġ the", "i n", "Ġ Ã", "Ã ©", "1 2", "Ġ Ġ"]
    words = [("▁the", -1.0), ("▁", -2.0), ("in", -3.0), ("é", -3.5), ("▁é", -3.6), *[(one, -9.0) for one in "theinx1"]]
    return [
        load_tokenizer(vocabularies.byte_level(folder / "bytes.gguf", [("<|im_end|>", 3)], merges)),
        load_tokenizer(vocabularies.scored(folder / "pieces.gguf", words, [("<turn>", 3), ("\n\n", 4)])),
    ]


HOSTILE = st.lists(
    st.sampled_from([*"the in12 \n\t", "é", "€", "\U0001f600", "‍", "́", "�", "\x00", "<|im_end|>", "<turn>"]),
    max_size=40,
).map("".join)


@settings(max_examples=150, deadline=None)
@given(st.data(), st.booleans())
def test_any_tokens_can_be_read_and_drafts_say_what_was_drafted(
    tokenizers: list[Tokenizer], data: st.DataObject, swapped: bool
) -> None:
    """Whatever was committed, in tokens of texts or at random, in parts, and whatever the draft model says then."""
    target, own = tokenizers[::-1] if swapped else tokenizers
    reading = Reading(target, own)
    committed: list[int] = []
    for _ in range(data.draw(st.integers(1, 4))):
        text = data.draw(HOSTILE)
        committed += target.tokenize(text, add_bos=False, parse_special=data.draw(st.booleans()))
        committed += data.draw(st.lists(st.integers(0, target.size - 1), max_size=4))
        reading.update(committed)
        assert len(reading.tokens) == len(reading.ends)
        assert reading.ends == sorted(reading.ends)
        assert 0 <= reading.agreed <= len(reading.tokens)
        reading.begin_draft(committed)
        for token in data.draw(st.lists(st.integers(0, own.size - 1), max_size=5)):
            if not reading.say(token):
                break
            said = text_of(target, reading.held) + text_of(target, reading.spelled)
            ends = bytes(reading.begun)
            if reading.spelled and not ends:
                whole = bytes(reading.said).decode(errors="replace")
                assert whole.startswith(said.decode()), "the target's tokens say what the draft model's say"
    read = committed[1:] if committed[:1] == [target.bos] else committed
    plain = b"".join([target.token_bytes(token) or target.token_name(token).encode() for token in read])
    assert plain.decode(errors="replace").startswith(reading._text.decode())


# --- the same text


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("trees", [True, False])
@pytest.mark.parametrize("bytes_draft", [True, False])
def test_the_same_ids_with_speculation_on_and_off(temperature: float, trees: bool, bytes_draft: bool) -> None:
    target, draft = (
        (TextModel(PAIRS, whole=2.0), TextModel(BYTES)) if bytes_draft else (TextModel(BYTES), TextModel(PAIRS))
    )
    engine = Engine(target, policy=FixedLength(5, siblings=3 if trees else 1))
    drafter = OtherTokenizerDrafter(draft, target.vocabulary)
    accepted = 0
    for seed in range(6):
        prompt = list(np.random.default_rng(seed).choice(list(LETTERS), 12))
        options = {"temperature": temperature, "seed": seed, "max_tokens": 40, "repetition_penalty": 1.05}
        engine.drafters = []
        plain = engine.generate(prompt, **options)  # type: ignore[arg-type]
        engine.drafters = [drafter]
        fast = engine.generate(prompt, **options)  # type: ignore[arg-type]
        assert fast.tokens == plain.tokens
        accepted += fast.statistics.accepted
    assert accepted > 0, "nothing was speculated, so nothing was tested"


def test_several_texts_at_once_are_what_they_are_alone() -> None:
    target = TextModel(BYTES)
    engine = Engine(target, [OtherTokenizerDrafter(TextModel(PAIRS), BYTES)], FixedLength(4, siblings=3))
    prompts = [list(b"abc"), list(b"fedcba"), list(b"aab")]
    many = engine.generate_many(prompts, seed=4, temperature=0.8, max_tokens=30)
    engine.drafters = []
    for prompt, one in zip(prompts, many, strict=True):
        assert one.tokens == engine.generate(prompt, seed=4, temperature=0.8, max_tokens=30).tokens
        assert one.statistics.accepted > 0
