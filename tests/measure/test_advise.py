from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from slipstream.engine import Engine, ModelOptions
from slipstream.errors import RuntimeUnavailableError
from slipstream.measure.advise import Advice, advise
from slipstream.measure.advise_text import lines
from slipstream.measure.candidates import Candidate, Candidates, LeftOut
from slipstream.measure.prompts import BenchPrompt
from tests.tiny_models import tiny_llama, tiny_recurrent

PROMPTS = [
    BenchPrompt(f"{kind}-{number}", kind, ({"role": "user", "content": f"{kind} the {number}"},))
    for kind in ("chat", "code")
    for number in range(2)
]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("models")
    return {
        "target": tiny_llama(folder / "target.gguf", seed=3),
        "small": tiny_llama(folder / "small.gguf", seed=3, noise=0.1),
        "other": tiny_llama(folder / "other.gguf", seed=3, noise=0.3),
        "recurrent": tiny_recurrent(folder / "recurrent.gguf"),
    }


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Short cost curves, and nothing learned is kept."""
    monkeypatch.setenv("SLIPSTREAM_CACHE_DIR", str(tmp_path / "cache"))
    for module in ("advise", "evidence"):
        monkeypatch.setattr(f"slipstream.measure.{module}.PROFILE_SECONDS", 0.05)


@pytest.fixture
def plain(models: dict[str, Path]) -> Iterator[Engine]:
    with Engine.load(models["target"], speculation="off", options=ModelOptions(context_length=256)) as engine:
        yield engine


def advised(
    plain: Engine,
    candidates: Candidates,
    load: Callable[[Candidate], Engine] | None = None,
    should_stop: Callable[[], bool] | None = None,
    seconds: float = 3.0,
) -> Advice:
    return advise(
        plain,
        candidates,
        load or (lambda candidate: plain.sharing(draft=candidate.draft)),
        PROMPTS,
        seconds=seconds,
        kv_bytes=100,
        max_tokens=12,
        options={"temperature": 1.0},
        should_stop=should_stop,
    )


def chosen(models: dict[str, Path], *names: str) -> list[Candidate]:
    return [Candidate(name, name if name == "suffix" else str(models[name])) for name in names]


def test_every_candidate_is_measured_and_predicted_on_every_kind(plain: Engine, models: dict[str, Path]) -> None:
    combined = Candidate("suffix+small", f"suffix+{models['small']}")
    candidates = Candidates([*chosen(models, "suffix", "small"), combined], [LeftOut("gone", "it is not there")])
    advice = advised(plain, candidates)
    assert [one.candidate.name for one in advice.assessments] == ["suffix", "small", "suffix+small"]
    for one in advice.assessments:
        assert list(one.kinds) == ["chat", "code"]
        for figures in (one.overall, *one.kinds.values()):
            assert figures.ratio is not None
            assert figures.predicted is not None
            assert figures.tokens_per_round is not None
            assert figures.tokens_per_round >= 1
        assert one.differing == 0
        assert list(one.failures) == []
        assert one.prediction is not None
        assert set(one.prediction.by_length()) == {1, 2, 4, 8}
    suffix, small, both = advice.assessments
    assert suffix.memory.total == suffix.memory.own > 0, "what recycling remembers"
    assert small.memory.target_context == round((small.memory.weights + small.memory.kv_cache) / 100)
    assert both.memory.total == small.memory.total + suffix.memory.total
    assert (suffix.costs.draft_step, small.runtime) == (None, "native")
    assert advice.verdict.answer in ("yes", "some", "none")
    assert advice.left_out == [LeftOut("gone", "it is not there")]
    assert list(advice.plain) == ["chat", "code"]
    assert not advice.partial
    assert advice.as_dict()["candidates"][1]["name"] == "small"
    assert lines(advice)[-1].startswith("Verdict: ")


def test_what_cannot_draft_is_left_out_and_the_rest_is_measured(plain: Engine, models: dict[str, Path]) -> None:
    advice = advised(plain, Candidates(chosen(models, "recurrent", "suffix")))
    assert [one.candidate.name for one in advice.assessments] == ["suffix"]
    [left_out] = advice.left_out
    assert left_out.name == "recurrent"
    assert "cannot take tokens back" in left_out.reason


def test_what_does_not_fit_beside_the_others_is_measured_after_them(plain: Engine, models: dict[str, Path]) -> None:
    open_engines: list[str] = []

    def load(candidate: Candidate) -> Engine:
        if candidate.name != "suffix" and any(name != "suffix" for name in open_engines):
            raise RuntimeUnavailableError("There is not enough memory.")
        engine = plain.sharing(draft=candidate.draft)
        close = engine.close
        open_engines.append(candidate.name)

        def closing() -> None:
            open_engines.remove(candidate.name)
            close()

        engine.close = closing  # type: ignore[method-assign]
        return engine

    advice = advised(plain, Candidates(chosen(models, "suffix", "small", "other")), load)
    assert [one.candidate.name for one in advice.assessments] == ["suffix", "small", "other"]
    assert all(one.overall.ratio is not None for one in advice.assessments)
    assert open_engines == []


def test_what_never_fits_is_left_out(plain: Engine, models: dict[str, Path]) -> None:
    def load(candidate: Candidate) -> Engine:
        if candidate.name == "suffix":
            return plain.sharing(draft="suffix")
        raise RuntimeUnavailableError("There is not enough memory.")

    advice = advised(plain, Candidates(chosen(models, "small", "suffix")), load)
    assert advice.left_out == [LeftOut("small", "There is not enough memory.")]
    assert [one.candidate.name for one in advice.assessments] == ["suffix"]


def test_without_a_candidate_that_fits_plain_decoding_it_is(plain: Engine, models: dict[str, Path]) -> None:
    advice = advised(plain, Candidates(chosen(models, "recurrent")))
    assert advice.verdict.answer == "none"
    assert "no candidate can draft" in advice.verdict.sentence
    assert advice.winner is None


def test_a_target_that_cannot_take_tokens_back_is_a_none_at_once(models: dict[str, Path]) -> None:
    with Engine.load(models["recurrent"], speculation="off") as plain:
        advice = advised(plain, Candidates(chosen(models, "suffix")))
    assert advice.verdict.answer == "none"
    assert "cannot take tokens back" in advice.verdict.sentence
    assert advice.assessments == []


def test_the_user_ends_it_and_what_was_measured_stays(plain: Engine, models: dict[str, Path]) -> None:
    calls = 0

    def stop() -> bool:
        nonlocal calls
        calls += 1
        return calls > 500

    advice = advised(plain, Candidates(chosen(models, "suffix", "small")), should_stop=stop, seconds=60)
    assert advice.partial
    assert "unfinished" in advice.verdict.sentence
    assert advice.assessments[0].overall.ratio is not None


def test_an_end_before_anything_was_measured_is_no_verdict(plain: Engine, models: dict[str, Path]) -> None:
    advice = advised(plain, Candidates(chosen(models, "suffix")), should_stop=lambda: True)
    assert (advice.partial, advice.verdict.answer) == (True, "unknown")


def test_prompts_that_do_not_fit_are_named_and_others_are_measured(
    plain: Engine, models: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    long = BenchPrompt("long", "retrieval", ({"role": "user", "content": "word " * 500},))
    monkeypatch.setitem(globals(), "PROMPTS", [long, *PROMPTS[:1]])
    advice = advised(plain, Candidates(chosen(models, "suffix")))
    assert any("context holds 256" in sentence for sentence in advice.failures)
    assert advice.unreached == ["retrieval"]
    assert list(advice.assessments[0].kinds) == ["chat"]
