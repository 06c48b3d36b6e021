"""Lossless on a real model: the law of what comes out (L1), and the same ids with speculation on and off (L3).

On the native runtime the ids are the same, and that is all. On llama.cpp near-ties are excused and measured.
"""

import json
import sys
from collections.abc import Iterator
from collections.abc import Sequence as Several
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from benchmarks.heads import random_head
from slipstream import Completion, Engine, ModelOptions, SamplingParams
from slipstream.core.feed import feed
from slipstream.core.gap import decision_gap
from slipstream.core.protocols import Drafter, Growth, Model, Rows, Segment, StopRule
from slipstream.core.sampling import Sampler
from slipstream.core.tree import ROOT, Draft
from slipstream.core.verify import Commit, Verdict, walk
from slipstream.corpus import LOCAL, Corpus
from slipstream.draft import HeadDrafter, LayersDrafter, ModelDrafter, RecyclingDrafter, SuffixDrafter
from slipstream.draft.base import BaseDrafter
from slipstream.errors import UnsupportedModelError
from slipstream.measure.distribution import Table, flattened, try_law
from slipstream.models import ChatTemplate, read_model_header
from slipstream.policy import FixedLength
from slipstream.runtime import LoadOptions, RuntimeName, choose, load, requantize
from slipstream.runtime.native import NativeModel
from slipstream.runtime.native.head import load_native_head

pytestmark = [pytest.mark.model, pytest.mark.timeout(900)]

PROMPTS = [
    json.loads(line)
    for line in (Path(__file__).parents[2] / "benchmarks" / "prompts.jsonl").read_text(encoding="utf-8").splitlines()
]
LONG = "Which of these texts mentions a valve? Quote the sentence.\n\n" + "\n\n".join(
    prompt["prompt"] for prompt in PROMPTS if prompt["kind"] == "summary"
)
PROMPTS = [prompt for index, prompt in enumerate(PROMPTS) if index % 5 != 4]
PROMPTS.append({"kind": "long", "prompt": LONG})
"""Four of each kind (chat, code, summary, translation, JSON), and one beyond 256 tokens: see ALLOWED_GAP."""
TOKENS = 32
SETTINGS = {
    f"temperature {temperature}": {
        "temperature": temperature,
        "top_p": 0.9,
        "min_p": 0.05,
        "repetition_penalty": 1.1,
        "seed": 7,
    }
    for temperature in (0.0, 0.8, 1.2)
}
ALLOWED_GAP = 0.5
"""Logits. Up to 256 tokens of context llama.cpp gave the same bits for one row and for several. Beyond, attention
splits the cache differently by number of rows, and every layer rounds what follows to 8 bits: single logits of
SmolLM2-135M Q4_1 then differed by up to 0.7 (five rows together against one by one, 300 to 800 random tokens before
them). A gap is how far all logits must move for the other token to win, so a decision that hangs on less than most of
that can fall either way; a mistake of the walk has no reason to be so close."""


class Bushy(BaseDrafter):
    """A draft model's chain with a decoy before each of its tokens: what is accepted is no run of rows."""

    name = "bushy"

    def __init__(self, inner: ModelDrafter) -> None:
        self.inner, self.model = inner, inner.model
        self.begin, self.end, self.close = inner.begin, inner.end, inner.close  # type: ignore[method-assign]

    def extend(self, frontier: Several[Growth]) -> None:
        for growth in frontier:
            if not len(growth.draft):
                self._plant(growth, growth.limit // 2)

    def _plant(self, growth: Growth, length: int) -> None:
        chain, parent = Draft(), ROOT
        for grown in range(length):
            self.inner.extend([Growth(growth.sequence, chain, length - grown)])
        for token in chain.tokens:
            growth.draft.add((token + 1) % growth.sequence.sampler.vocabulary_size, parent, source=self.name)
            parent = growth.draft.add(token, parent, source=self.name)


class Branching(SuffixDrafter):
    """Suffix lookup that is allowed to branch, whatever the policy says."""

    def extend(self, frontier: Several[Growth]) -> None:
        super().extend([growth._replace(siblings=3) for growth in frontier])


def load_with(runtime: RuntimeName, path: Path, sequences: int = 1) -> Model:
    options = LoadOptions(runtime=runtime, context_length=1024, max_sequences=sequences)
    return load(path, choose(read_model_header(path), options), options)


@pytest.fixture(scope="module", params=["llamacpp", "native"])
def target(request: pytest.FixtureRequest, smollm2: Path) -> Iterator[Model]:
    model = load_with(request.param, smollm2, sequences=2)
    assert (model.runtime, model.capabilities.bit_exact_rows) == (request.param, request.param == "native")
    yield model
    model.close()


@pytest.fixture(scope="module")
def corpus(target: Model, tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    """Closed by the drafter that has it."""
    return Corpus(tmp_path_factory.mktemp("corpus"), target.vocabulary.size)


@pytest.fixture(scope="module")
def drafters(
    target: Model, smollm2: Path, corpus: Corpus, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, list[Drafter]]]:
    """Every drafter that the target can check; the draft model is a requantised copy of it.

    Beside a native target one draft model is native, too, and one is not.
    """
    copy = requantize(smollm2, tmp_path_factory.mktemp("draft") / "copy.gguf", "Q4_0")
    runtimes: list[RuntimeName] = ["native", "llamacpp"] if target.runtime == "native" else ["llamacpp", "llamacpp"]
    drafters: dict[str, list[Drafter]] = {
        "suffix": [SuffixDrafter()],
        "model": [ModelDrafter(load_with(runtimes[0], copy))],
        "suffix+model": [SuffixDrafter(), ModelDrafter(load_with(runtimes[1], copy))],
    }
    if target.capabilities.bit_exact_rows:  # elsewhere, where it takes long, the corpus' drafter has one
        drafters["recycling"] = [RecyclingDrafter(target.vocabulary.size)]
    if target.capabilities.trees:
        drafters["bushy"] = [Bushy(ModelDrafter(load_with(runtimes[0], copy)))]
    if target.capabilities.layer_subsets:
        few, fewer = [*range(12), *range(16, 30)], [*range(12), *range(20, 30)]
        drafters["layers"] = [LayersDrafter(target, few), LayersDrafter(target, fewer, source="layers2")]
    suffix = Branching if target.capabilities.trees else SuffixDrafter
    drafters["corpus"] = [suffix(corpus, RecyclingDrafter(target.vocabulary.size))]
    yield drafters
    for several in drafters.values():
        for drafter in several:
            drafter.close()


@pytest.fixture(scope="module")
def engine(target: Model, smollm2: Path) -> Engine:
    """Without a drafter; the tests exchange it."""
    template = ChatTemplate.from_header(read_model_header(smollm2))
    return Engine(target, policy=FixedLength(4), template=template)


@pytest.mark.parametrize("setting", SETTINGS)
def test_the_same_ids_with_speculation_on_and_off(
    engine: Engine,
    drafters: dict[str, list[Drafter]],
    corpus: Corpus,
    setting: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Over all prompts and drafters; only rows that are not bit-exact excuse a parting, and only at a near-tie.

    The corpus has every answer, with every fourth token exchanged for another.
    """
    assert len(PROMPTS) >= 20
    options, partings, accepted = SETTINGS[setting], [], dict.fromkeys(drafters, 0)
    for prompt in PROMPTS:
        messages = [{"role": "user", "content": prompt["prompt"]}]
        engine.drafters = []
        plain = engine.generate(messages, max_tokens=TOKENS, **options)  # type: ignore[arg-type]
        wrong = [one if place % 4 else (one + 1) % 49152 for place, one in enumerate(plain.tokens, 1)]
        corpus.add(LOCAL, [*plain.prompt_tokens, *wrong])
        corpus.flush()
        for name, several in drafters.items():
            engine.drafters = several
            fast = engine.generate(messages, max_tokens=TOKENS, **options)  # type: ignore[arg-type]
            accepted[name] += fast.timings.draft_n_accepted
            if fast.tokens != plain.tokens:
                partings.append((name, prompt["prompt"][:40], parting_gap(engine, plain, fast, options)))
    texts = len(drafters) * len(PROMPTS)
    with capsys.disabled():
        gaps = ", ".join(f"{gap:.3f}" for *_, gap in partings)
        sys.stdout.write(f"\n{setting}: {len(partings)} of {texts} texts part at gaps of {gaps or '-'}\n")
    assert min(accepted.values()) > 0, "nothing was speculated, so nothing was tested"
    if engine.target.capabilities.bit_exact_rows:
        assert partings == []
    assert all(gap <= ALLOWED_GAP for *_, gap in partings), partings
    assert len(partings) <= texts // 4, "near-ties are rare; this many are something else"


@pytest.mark.parametrize("setting", SETTINGS)
def test_the_same_ids_with_a_prediction(engine: Engine, setting: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The answer itself with one word in six exchanged, as a text: its tokens are not always the answer's."""
    options, partings, accepted, engine.drafters = SETTINGS[setting], [], 0, []
    for prompt in PROMPTS[::2]:
        messages = [{"role": "user", "content": prompt["prompt"]}]
        plain = engine.generate(messages, max_tokens=TOKENS, **options)  # type: ignore[arg-type]
        words = plain.text.split(" ")
        predicted = " ".join("other" if place % 6 == 5 else word for place, word in enumerate(words))
        fast = engine.generate(messages, max_tokens=TOKENS, prediction=predicted, **options)  # type: ignore[arg-type]
        accepted += fast.drafted_by("prediction")[0]
        if fast.tokens != plain.tokens:
            partings.append(parting_gap(engine, plain, fast, options))
    with capsys.disabled():
        sys.stdout.write(f"\n{setting}: {accepted} predicted tokens accepted, gaps {partings or '-'}\n")
    assert accepted > 5 * len(PROMPTS[::2])
    assert partings == [] or not engine.target.capabilities.bit_exact_rows
    assert all(gap <= ALLOWED_GAP for gap in partings), partings


@pytest.fixture(scope="module")
def sixteen_bits(smollm2: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A target that a low-bit copy can be made of; copies go to a cache of their own."""
    folder = tmp_path_factory.mktemp("sixteen")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SLIPSTREAM_CACHE_DIR", str(folder / "cache"))
        yield requantize(smollm2, folder / "sixteen.gguf", "F16")


@pytest.mark.parametrize("draft", ["lowbit", "suffix+lowbit"])
def test_the_same_ids_with_a_low_bit_copy(sixteen_bits: Path, draft: str) -> None:
    """Where rows are bit-exact; fixed chains, and what the measuring policy makes of it."""
    model = ModelOptions(runtime="native", draft_runtime="native", context_length=1024)
    with (
        Engine.load(sixteen_bits, speculation="off", options=model) as plain,
        plain.sharing(draft=draft, speculation="on") as fixed,
        plain.sharing(draft=draft, speculation="auto") as measured,
    ):
        for options in SETTINGS.values():
            accepted = 0
            for prompt in PROMPTS[::4]:
                messages = [{"role": "user", "content": prompt["prompt"]}]
                expected = plain.generate(messages, max_tokens=TOKENS, **options)  # type: ignore[arg-type]
                for engine in (fixed, measured):
                    fast = engine.generate(messages, max_tokens=TOKENS, **options)  # type: ignore[arg-type]
                    assert fast.tokens == expected.tokens
                    accepted += fast.drafted_by("lowbit")[0]
            assert accepted > 0, "nothing was speculated, so nothing was tested"


def test_a_random_head_changes_no_id(target: Model, engine: Engine, smollm2: Path, tmp_path: Path) -> None:
    """Hidden states are kept, read and thrown away again, and its trees are verified, all for nothing."""
    header = read_model_header(smollm2)
    file = random_head(tmp_path / "head.gguf", header, 8192)
    if not isinstance(target, NativeModel):
        with pytest.raises(UnsupportedModelError, match="only the native runtime"):
            load_native_head(file, target, header)
        return
    drafter = HeadDrafter(load_native_head(file, target, header, max_sequences=2))
    before, engine.policy = engine.policy, FixedLength(4, 3)
    for options in SETTINGS.values():
        for prompt in (*PROMPTS[::6], PROMPTS[-1]):
            messages, found = [{"role": "user", "content": prompt["prompt"]}], []
            for engine.drafters in ([], [drafter]):
                found.append(engine.generate(messages, max_tokens=TOKENS, **options))  # type: ignore[arg-type]
            assert found[0].tokens == found[1].tokens
            assert found[1].timings.draft_n > TOKENS
    engine.drafters, engine.policy = [], before
    drafter.close()


def parting_gap(engine: Engine, plain: Completion, fast: Completion, options: dict[str, float]) -> float:
    """The gap of the first decision in which two completions differ, on a row computed for one token alone.

    That row may give either of the two tokens; the gap is that of the one it does not give.
    """
    index = next(i for i, pair in enumerate(zip(plain.tokens, fast.tokens, strict=False)) if pair[0] != pair[1])
    history = [*plain.prompt_tokens, *plain.tokens[:index]]
    sampler = Sampler(SamplingParams(**options), engine.target.vocabulary.size, history)  # type: ignore[arg-type]
    row = with_row(engine.target, history)
    return max(decision_gap(row, sampler, len(history), one.tokens[index]) for one in (plain, fast))


def test_a_wrong_token_is_no_near_tie(engine: Engine) -> None:
    """The measure that excuses near-ties must not excuse a mistake."""
    engine.drafters = []
    plain = engine.generate("The capital of France is", max_tokens=4, temperature=0)
    wrong = Completion(plain.prompt_tokens, tokens=[plain.tokens[0], (plain.tokens[1] + 1) % 49152])
    assert parting_gap(engine, plain, wrong, {"temperature": 0, "seed": 7}) > ALLOWED_GAP


def with_row(model: Model, tokens: list[int]) -> NDArray[np.float32]:
    """The logits after these tokens, computed as plain decoding does: the last token alone."""
    session = model.open_session()
    try:
        for _ in feed(model, session, tokens[:-1]):
            pass
        [rows] = model.forward([Segment(session, tokens[-1:])])
        return rows.logits(0).copy()
    finally:
        session.close()


@pytest.fixture(scope="module")
def table(engine: Engine, target: Model) -> Table:
    """Rows of the real model, each computed once."""
    prompt = engine.tokenize("Once upon a time there was a")
    return Table(tuple(prompt), lambda tokens: with_row(target, list(tokens)))


LAW = SamplingParams(temperature=0.8, top_p=0.6, min_p=0.02, repetition_penalty=1.2, seed=0)


def test_the_law_of_two_tokens_is_the_target_s(table: Table) -> None:
    test = try_law(table, LAW, flattened(table), walk, 4000)
    assert not test.fails(1e-3), test
    assert test.accepted > 1000


def believes_likely_drafts(
    draft: Draft, rows: Rows, sampler: Sampler, stop: StopRule, position: int, *, logprobs: bool = False
) -> Verdict:
    """A deliberately broken verifier: it accepts a draft token that is merely probable."""
    row = rows.logits(0)
    token = draft.tokens[0]
    if row[token] < row.max() - 3.0:
        return walk(draft, rows, sampler, stop, position)
    sampler.accept(token)
    reason = stop.push(token)[1]
    return Verdict([Commit(token, 0, "guess", "", None)], 1, reason)


def test_a_broken_verifier_fails_the_test_of_the_law(table: Table) -> None:
    test = try_law(table, LAW, flattened(table), believes_likely_drafts, 4000)
    assert test.fails(1e-6), f"{test}: the test of the law does not see a broken verifier"
