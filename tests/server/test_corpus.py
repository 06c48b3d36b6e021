"""What one user says must not come up in another's drafts."""

from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import pytest

from slipstream.core.params import SamplingParams
from slipstream.core.protocols import Growth
from slipstream.corpus import Corpus
from slipstream.draft import RecyclingDrafter, SuffixDrafter
from slipstream.engine import Engine
from slipstream.models import ChatTemplate
from slipstream.policy import FixedLength
from slipstream.server.app import Doors
from tests.fakes import FakeModel
from tests.server.serving import TEMPLATE, LetterVocabulary, serving

ADA, BOB = "key-of-ada", "key-of-bob"
QUESTION = "the password of the safe is "
SECRET = "xyzzy4711"


class Listening(SuffixDrafter):
    """Remembers everything that it proposed."""

    def __init__(self, corpus: Corpus, size: int) -> None:
        super().__init__(corpus, RecyclingDrafter(size))
        self.proposed: list[tuple[str, list[int]]] = []
        self.corpus = corpus

    def extend(self, frontier: Sequence[Growth]) -> None:
        super().extend(frontier)
        self.proposed += [(growth.sequence.scope, list(growth.draft.tokens)) for growth in frontier]


@pytest.fixture
def listening(tmp_path: Path) -> Listening:
    return Listening(Corpus(tmp_path / "corpus", LetterVocabulary.size), LetterVocabulary.size)


def engine_of(drafter: Listening) -> Engine:
    model = FakeModel(LetterVocabulary(), seed=1, order=1, context_length=512, max_rows=64)
    defaults = SamplingParams(temperature=0.8)
    return Engine(model, drafter, FixedLength(6), template=ChatTemplate(TEMPLATE), defaults=defaults)


def asker(url: str, key: str | None) -> Callable[..., dict[str, Any]]:
    def ask(prompt: str, **more: Any) -> dict[str, Any]:
        headers = {} if key is None else {"Authorization": f"Bearer {key}"}
        body = {"prompt": prompt, "max_tokens": 12, "seed": 5, **more}
        answer = httpx.post(f"{url}/v1/completions", json=body, headers=headers, timeout=60)
        assert answer.status_code == 200, answer.text
        return answer.json()  # type: ignore[no-any-return]

    return ask


def quotes(drafter: Listening) -> bool:
    """Whether a draft had two letters of the secret in a row."""
    pairs = set(pairwise(SECRET.encode()))
    return any(pair in pairs for _, tokens in drafter.proposed for pair in pairwise(tokens))


def test_no_user_s_prompt_is_drafted_into_another_s_text(listening: Listening) -> None:
    with serving(engine_of(listening), doors=Doors(api_key=(ADA, BOB))) as served:
        ada, bob = asker(served.url, ADA), asker(served.url, BOB)
        ada(f"remember: {QUESTION}{SECRET}")
        listening.corpus.flush()
        listening.proposed.clear()
        bob(QUESTION)
        bob(f"remember: {QUESTION}{SECRET[0]}")
        assert listening.proposed
        assert not quotes(listening)
        listening.proposed.clear()
        ada(QUESTION)
        assert quotes(listening), "her own words are hers to be drafted from"


def test_a_shared_corpus_is_shared(listening: Listening) -> None:
    doors = Doors(api_key=(ADA, BOB))
    with serving(engine_of(listening), doors=doors, shared=True) as served:
        asker(served.url, ADA)(f"remember: {QUESTION}{SECRET}")
        listening.corpus.flush()
        listening.proposed.clear()
        asker(served.url, BOB)(QUESTION)
        assert quotes(listening)


def test_the_text_is_the_same_with_any_corpus(listening: Listening) -> None:
    with serving(engine_of(listening), doors=Doors(api_key=(ADA, BOB))) as served:
        ada, bob = asker(served.url, ADA), asker(served.url, BOB)
        plain = ada("hello", speculation="off")["choices"][0]["text"]
        assert [ask("hello")["choices"][0]["text"] for ask in (ada, bob, ada, bob, ada)] == [plain] * 5


def test_without_keys_there_is_one_user(listening: Listening) -> None:
    with serving(engine_of(listening)) as served:
        asker(served.url, None)(f"remember: {QUESTION}{SECRET}")
        listening.corpus.flush()
        listening.proposed.clear()
        asker(served.url, "whatever")(QUESTION)
        assert quotes(listening)
        assert {scope for scope, _ in listening.proposed} == {""}


@pytest.mark.parametrize(("key", "status"), [(ADA, 200), (BOB, 200), ("key-of-eve", 401), (None, 401)])
def test_each_of_several_keys_opens_the_door(listening: Listening, key: str | None, status: int) -> None:
    with serving(engine_of(listening), doors=Doors(api_key=(ADA, BOB))) as served:
        headers = {} if key is None else {"Authorization": f"Bearer {key}"}
        assert httpx.get(f"{served.url}/v1/models", headers=headers).status_code == status


def test_a_request_cannot_choose_whose_it_is(listening: Listening) -> None:
    with serving(engine_of(listening), doors=Doors(api_key=(ADA, BOB))) as served:
        asker(served.url, BOB)("hello", user="ada", scope="ada")
        asker(served.url, ADA)("hello")
        assert len({scope for scope, _ in listening.proposed}) == 2
