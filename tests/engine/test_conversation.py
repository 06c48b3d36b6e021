from pathlib import Path
from typing import Any

import pytest

from slipstream.draft import SuffixDrafter
from slipstream.engine import Completion, Conversation, Engine, ModelOptions, Turn
from slipstream.errors import ChatTemplateError, ContextLimitError, UsageError
from slipstream.models import ChatTemplate
from slipstream.runtime import RuntimeName
from tests.fakes import ByteVocabulary, FakeModel

END = 256
PLAIN = (
    "{% for message in messages %}[{{ message.role }}]{{ message.content }}<end>{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)
FORGETS_THINKING = PLAIN.replace("{{ message.content }}", "{{ message.content.split('</think>')[-1].lstrip('\\n') }}")
OPENS_THINKING = PLAIN.replace(
    "{% if add_generation_prompt %}[assistant]", "{% if add_generation_prompt %}[assistant]<think>\n"
)
SHOUTS = PLAIN.replace("{{ message.content }}", "{{ message.content | upper }}")


def conversation(template: str = PLAIN, *, drafter: SuffixDrafter | None = None, **options: Any) -> Conversation:
    model_options = {name: options.pop(name) for name in ("vocabulary", "context_length") if name in options}
    model = FakeModel(**({"context_length": 1000} | model_options))
    return Conversation(Engine(model, drafter, template=ChatTemplate(template)), **options)


def answer(chat: Conversation, text: str, **options: Any) -> Completion:
    options = {"max_tokens": 12} | options
    with chat.ask(text, **options) as stream:
        for _ in stream:
            pass
    return stream.completion


def said(chat: Conversation, answer: bytes | list[int], *, text: str = "q", opened: bool = False) -> None:
    """Put a turn with a known answer into the history."""
    chat.turns.append(Turn(text, Completion([1], tokens=list(answer)), opened))


def prompt_bytes(chat: Conversation, text: str) -> bytes:
    """What the model would be given for `text`, the end token spelt out."""
    tokens = chat.ask(text, max_tokens=1).completion.prompt_tokens
    return b"".join(b"<end>" if token == END else bytes([token]) for token in tokens)


def test_the_history_is_the_generated_ids_and_not_their_text() -> None:
    chat = conversation(seed=1)
    first = answer(chat, "hello")
    assert "�" in first.text, "bytes that are no text, or this test shows nothing"
    second = answer(chat, "go on")
    assert second.prompt_tokens == [*first.prompt_tokens, *first.tokens, END, *b"[user]go on", END, *b"[assistant]"]


def test_the_kv_cache_serves_everything_before_the_new_text() -> None:
    chat = conversation(seed=1)
    first = answer(chat, "hello")
    second = answer(chat, "go on")
    assert second.timings.cache_n == len(first.prompt_tokens) + len(first.tokens) - 1


def test_an_end_token_that_was_generated_does_not_come_twice() -> None:
    chat = conversation()
    first = answer(chat, "hello", logit_bias={END: 1000.0})
    assert first.tokens == [END]
    assert prompt_bytes(chat, "again") == b"[user]hello<end>[assistant]<end>[user]again<end>[assistant]"


def test_an_answer_that_was_cut_is_closed() -> None:
    chat = conversation()
    first = answer(chat, "hello", max_tokens=3, logit_bias={END: -1000.0})
    assert first.finish_reason == "length"
    assert prompt_bytes(chat, "x").endswith(bytes(first.tokens) + b"<end>[user]x<end>[assistant]")


def test_a_second_question_ends_the_answer_that_still_runs() -> None:
    chat = conversation()
    stream = chat.ask("hello", logit_bias={END: -1000.0})
    shown = [next(stream).id for _ in range(3)]
    answer(chat, "stop")
    assert stream.completion.finish_reason == "cancelled"
    assert stream.completion.tokens == shown
    assert list(stream) == []
    assert len(chat.turns) == 2


def test_a_turn_without_any_answer_is_dropped() -> None:
    chat = conversation()
    stream = chat.ask("never read")
    stream.cancel()
    assert list(stream) == []
    assert prompt_bytes(chat, "hello") == b"[user]hello<end>[assistant]"


def test_thinking_is_cut_where_the_template_cuts_it() -> None:
    chat = conversation(FORGETS_THINKING)
    said(chat, [*b"<think>hm</think>\n\nyes", END])
    assert prompt_bytes(chat, "x") == b"[user]q<end>[assistant]yes<end>[user]x<end>[assistant]"


def test_thinking_that_the_prompt_opened_is_cut_too() -> None:
    chat = conversation(FORGETS_THINKING)
    said(chat, [*b"hm</think>\xff\xfe", END], opened=True)
    assert b"[assistant]\xff\xfe<end>[user]x" in prompt_bytes(chat, "x"), (
        "the ids behind the tag are the generated ones"
    )


@pytest.mark.parametrize("answer", [b"<think>never done", b"<think>"])
def test_thinking_without_an_end_goes_altogether(answer: bytes) -> None:
    chat = conversation(FORGETS_THINKING)
    said(chat, answer)
    assert b"[assistant]<end>[user]x" in prompt_bytes(chat, "x")


def test_an_answer_without_thinking_stays_whole_where_thinking_is_cut() -> None:
    chat = conversation(FORGETS_THINKING)
    said(chat, b"just\xffso")
    assert b"[assistant]just\xffso<end>[user]x" in prompt_bytes(chat, "x")


def test_a_template_that_opens_thinking_and_keeps_it_gets_the_same_prefix_again() -> None:
    chat = conversation(OPENS_THINKING)
    first = answer(chat, "hello", logit_bias={END: -1000.0})
    assert chat.turns[0].opened
    second = answer(chat, "go on")
    assert second.prompt_tokens[: len(first.prompt_tokens) + len(first.tokens)] == first.prompt_tokens + first.tokens


def test_writing_about_tags_does_not_open_thinking() -> None:
    chat = conversation(FORGETS_THINKING)
    answer(chat, "what does <think> mean")
    assert not chat.turns[0].opened


def test_a_template_that_rewrites_answers_is_given_their_text() -> None:
    chat = conversation(SHOUTS)
    first = answer(chat, "hello")
    prompt = chat.ask("go on").completion.prompt_tokens
    assert prompt == chat.engine.tokenize(
        [
            {"role": "user", "content": "hello"},
            {"role": "assistant", "content": first.text},
            {"role": "user", "content": "go on"},
        ]
    )


class SpaceVocabulary(ByteVocabulary):
    """Puts a space before a text's first word, as SentencePiece does."""

    def tokenize(self, text: str, *, add_bos: bool, parse_special: bool) -> list[int]:
        space = "" if not text or text.startswith("<end>") else " "
        return super().tokenize(space + text, add_bos=add_bos, parse_special=parse_special)


def test_template_text_after_an_answer_gets_no_space_of_its_own() -> None:
    chat = conversation(PLAIN.replace("<end>", "\n"), vocabulary=SpaceVocabulary())
    said(chat, b"yes")
    assert prompt_bytes(chat, "x") == b" [user]q\n[assistant]yes\n[user]x\n[assistant]"


def test_a_bos_token_comes_once() -> None:
    chat = conversation("<bos>" + PLAIN, vocabulary=ByteVocabulary(bos=257))
    chat.engine.target.vocabulary.token_name(257)
    prompt = answer(chat, "hello").prompt_tokens
    assert prompt[:5] == list(b"<bos>"), "this vocabulary does not read it as a token, and adds none"
    assert 257 not in prompt
    assert answer(conversation(vocabulary=ByteVocabulary(bos=257)), "hello").prompt_tokens[0] == 257


def test_the_system_text_comes_first_and_may_change() -> None:
    chat = conversation(system="be brief")
    said(chat, b"yes")
    assert prompt_bytes(chat, "x").startswith(b"[system]be brief<end>[user]q<end>[assistant]yes<end>")
    chat.system = "be long"
    assert prompt_bytes(chat, "x").startswith(b"[system]be long<end>[user]q")


def test_the_oldest_turns_go_when_the_context_is_full_and_the_system_text_stays() -> None:
    chat = conversation(context_length=180, system="sys")
    said(chat, b"a" * 50, text="first")
    said(chat, b"b" * 50, text="second")
    prompt = prompt_bytes(chat, "third")
    assert prompt == b"[system]sys<end>[user]second<end>[assistant]" + b"b" * 50 + b"<end>[user]third<end>[assistant]"
    assert chat.forgotten == 1
    assert chat.notice is not None
    assert "oldest turn " in chat.notice
    assert "180" in chat.notice
    assert [turn.text for turn in chat.turns] == ["first", "second", "third"], "the transcript stays whole"


def test_a_conversation_can_go_on_for_ever() -> None:
    chat = conversation(context_length=200, seed=3, drafter=SuffixDrafter())
    seen = set()
    for number in range(30):
        completion = answer(chat, f"turn {number}", max_tokens=20)
        assert completion.tokens
        assert len(completion.prompt_tokens) + 20 <= 200
        # a position and a seed together are the noise: they must never come again
        used = {(completion.seed, len(completion.prompt_tokens) + index) for index in range(len(completion.tokens))}
        assert not used & seen
        seen |= used
    assert 0 < chat.forgotten < 29


def test_what_does_not_fit_alone_is_refused_and_changes_nothing() -> None:
    chat = conversation(context_length=100)
    answer(chat, "hello", max_tokens=5)
    with pytest.raises(ContextLimitError, match=r"has \d+ tokens and the context holds 100"):
        chat.ask("x" * 100)
    assert [turn.text for turn in chat.turns] == ["hello"]
    assert chat.forgotten == 0
    assert chat.notice is None


def test_one_seed_serves_all_turns_and_gives_the_same_conversation_with_any_drafter() -> None:
    def texts(drafter: SuffixDrafter | None) -> list[list[int]]:
        chat = conversation(drafter=drafter, seed=11)
        completions = [answer(chat, text, max_tokens=40) for text in ("hello", "hello hello", "hello")]
        assert {completion.seed for completion in completions} == {11}
        return [completion.tokens for completion in completions]

    assert texts(None) == texts(SuffixDrafter())


def test_another_answer_replaces_the_last_with_the_next_seed() -> None:
    chat = conversation(seed=11)
    first = answer(chat, "hello")
    stream = chat.regenerate(max_tokens=12)
    assert stream.completion.prompt_tokens == first.prompt_tokens
    assert [token.id for token in stream] != first.tokens
    assert stream.completion.seed == 12
    assert len(chat.turns) == 1


def test_an_answer_that_cannot_be_generated_again_stays() -> None:
    chat = conversation()
    with pytest.raises(UsageError, match="no answer yet"):
        chat.regenerate()
    answer(chat, "hello")
    with pytest.raises(UsageError, match="max_tokens"):
        chat.regenerate(max_tokens=0)
    assert [turn.text for turn in chat.turns] == ["hello"]


def test_a_failed_second_answer_does_not_use_up_a_seed() -> None:
    chat = conversation(seed=11)
    answer(chat, "hello")
    with pytest.raises(UsageError, match="max_tokens"):
        chat.regenerate(max_tokens=0)
    assert chat.regenerate(max_tokens=12).completion.seed == 12


def test_a_new_seed_is_used_as_it_is() -> None:
    chat = conversation(context_length=100, seed=11)
    answer(chat, "hello")
    chat.regenerate(max_tokens=12).close()
    chat.seed = 30
    assert answer(chat, "more").seed == 30
    assert chat.regenerate(max_tokens=12).completion.seed == 31
    while not chat.forgotten:
        answer(chat, "much more")
    chat.seed = 50
    assert answer(chat, "on").seed == 50


def test_an_impossible_seed_is_refused_at_once_and_the_old_one_stays() -> None:
    chat = conversation(seed=11)
    with pytest.raises(UsageError, match="seed must be a whole number from"):
        chat.seed = 10**25
    assert answer(chat, "hello").seed == 11


def test_a_seed_for_one_turn_is_that_turns_own() -> None:
    chat = conversation(seed=11)
    assert answer(chat, "hello", seed=5).seed == 5
    assert answer(chat, "hello").seed == 11


def test_clearing_begins_the_same_conversation_again() -> None:
    chat = conversation(seed=11)
    first = answer(chat, "hello")
    answer(chat, "more")
    chat.clear()
    assert answer(chat, "hello").tokens == first.tokens
    assert len(chat.turns) == 1


def test_messages_are_the_transcript() -> None:
    chat = conversation(system="sys")
    completion = answer(chat, "hello")
    assert [(message["role"], message["content"]) for message in chat.messages()] == [
        ("system", "sys"),
        ("user", "hello"),
        ("assistant", completion.text),
    ]


def test_a_model_without_a_template_is_refused() -> None:
    with pytest.raises(ChatTemplateError, match="no chat template"):
        Conversation(Engine(FakeModel())).ask("hello")


@pytest.mark.model
@pytest.mark.parametrize("runtime", ["llamacpp", "native"])
def test_a_real_conversation_reuses_its_kv_cache(smollm2: Path, runtime: RuntimeName) -> None:
    with Engine.load(smollm2, draft="suffix", options=ModelOptions(runtime=runtime)) as engine:
        chat = Conversation(engine, seed=7)
        first = answer(chat, "My name is Ada. Name a colour.", max_tokens=20)
        second = answer(chat, "And my name?", max_tokens=20)
        kept = [token for token in first.tokens if token not in engine.target.vocabulary.end_tokens]
        prefix = [*first.prompt_tokens, *kept]
        assert second.prompt_tokens[: len(prefix)] == prefix
        assert second.timings.cache_n == len(first.prompt_tokens) + len(first.tokens) - 1
        text = engine.render(
            [{"role": "user", "content": "My name is Ada. Name a colour."}, {"role": "assistant", "content": "\0"},
             {"role": "user", "content": "And my name?"}]
        )  # fmt: skip
        after = engine.target.vocabulary.tokenize(text.partition("\0")[2], add_bos=False, parse_special=True)
        assert second.prompt_tokens[len(prefix) :] == after
