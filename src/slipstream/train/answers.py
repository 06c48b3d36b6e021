"""The target answers: texts for training, made in a batch and kept in shards, and those that are measured with."""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from time import monotonic
from typing import NamedTuple

import numpy as np

from slipstream.engine import Completion, Engine, GenerationOptions, Prompt
from slipstream.errors import ChatTemplateError, UsageError
from slipstream.measure.looping import GRAM
from slipstream.measure.prompts import BenchPrompt
from slipstream.train.decoding import Job, decode_all
from slipstream.train.files import DamagedFileError, read_json, write_json
from slipstream.train.prompts import Ask, Source, messages_of, plain_text
from slipstream.train.recipe import Recipe
from slipstream.train.texts import SHARD, Shard, Text, read_shard, shard_path, write_shard

WIDTH = 24
"""Texts that are decoded at once."""
TURN_TOKENS = 256
"""Of a user's turn that the target writes, at most."""
LEAST_ANSWER = 8
MOST_REPEATED = 48
"""Tokens of a loop that are kept."""
PLAIN: GenerationOptions = {
    "top_k": 0,
    "top_p": 1.0,
    "min_p": 0.0,
    "repetition_penalty": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "logit_bias": {},
    "stop": None,
    "logprobs": False,
}
"""Answers come from the target's own distribution, whatever its file recommends."""
_MARK = "\ue000the user's turn\ue000"

Progress = Callable[[int, int], None]
"""Called with the answers' tokens so far, and how many there are to be."""


class Limits(NamedTuple):
    """When there are answers enough. seconds: for all of them, over all runs of the program; None for no end."""

    tokens: int
    seconds: float | None = None


def make_answers(
    engine: Engine,
    source: Source,
    recipe: Recipe,
    folder: Path,
    limits: Limits,
    progress: Progress,
    say: Callable[[str], None],
    should_stop: Callable[[], bool] = lambda: False,
) -> list[Shard]:
    """The shards of texts in `folder`, those that are missing made first; a killed program loses two at most.

    should_stop: asked after every round; what is done by then is kept

    Raises StorageError, and UsageError where no text comes out at all.
    """
    held_out = {plain_text(message["content"]) for prompt in source.held_out for message in prompt.messages}
    maker = _Maker(engine, source, recipe, folder, held_out)
    shards = maker.shards
    shards.extend(_read_all(folder, say))
    finished = read_json(folder / "finished.json")
    if finished is not None and len(shards) >= finished["shards"] and not _wants_more(shards, finished, limits):
        return shards[: finished["shards"]]
    maker.work(limits, progress, should_stop)
    if should_stop():
        return shards
    if not any(shard.texts for shard in shards):
        raise UsageError("No prompt came to a text that can be trained on; give other prompts, or longer ones.")
    write_json(folder / "finished.json", {"shards": len(shards), "tokens": limits.tokens, "end": maker.exhausted})
    return shards


def answer_held_out(
    engine: Engine,
    prompts: Sequence[BenchPrompt],
    recipe: Recipe,
    folder: Path,
    should_stop: Callable[[], bool] = lambda: False,
) -> list[Text]:
    """Answers to prompts that are never trained on, each at temperature 0 and at 1. Made once.

    should_stop: asked after every round; nothing is kept then
    """
    path = folder / f"held-out-{hashlib.sha256(repr(prompts).encode()).hexdigest()[:8]}.bin"
    try:
        return read_shard(path).texts
    except (FileNotFoundError, DamagedFileError):
        pass
    texts: dict[int, Text] = {}

    def jobs() -> Iterator[Job]:
        for number, (prompt, temperature) in enumerate((p, warm) for p in prompts for warm in (0.0, 1.0)):
            seed = _seed(recipe.seed, "held out", number)
            ids = engine.tokenize(prompt.for_model(has_template=engine.template is not None))
            if len(ids) > recipe.prompt_tokens:
                continue
            keep = _keeping(texts, number, prompt.kind, temperature, seed)
            yield Job(ids, _options(temperature, recipe.answer_tokens, seed), keep)

    started = monotonic()
    decode_all(engine, jobs(), WIDTH, lambda: not should_stop())
    if should_stop():
        return []
    made = [texts[number] for number in sorted(texts)]
    write_shard(path, made, monotonic() - started)
    return made


def _keeping(
    texts: dict[int, Text], number: int, kind: str, temperature: float, seed: int
) -> Callable[[Completion], Job | None]:
    def keep(completion: Completion) -> None:
        texts[number] = _text(completion, kind, temperature, seed)

    return keep


def _text(completion: Completion, kind: str, temperature: float, seed: int) -> Text:
    tokens = np.array([*completion.prompt_tokens, *completion.tokens], np.int32)
    return Text(tokens, len(completion.prompt_tokens), kind, temperature, seed)


def _options(temperature: float, max_tokens: int, seed: int) -> GenerationOptions:
    return {**PLAIN, "temperature": temperature, "max_tokens": max_tokens, "seed": seed}


def _seed(*parts: object) -> int:
    return int.from_bytes(hashlib.sha256(repr(parts).encode()).digest()[:7])


def _read_all(folder: Path, say: Callable[[str], None]) -> Iterator[Shard]:
    """The shards that are there, up to the first that is missing or damaged."""
    for number in count():
        path = shard_path(folder, number)
        try:
            yield read_shard(path)
        except FileNotFoundError:
            return
        except DamagedFileError:
            say(f"{path.name} is damaged; it and the answers after it are made again.")
            _remove_from(folder, number)
            return


def _remove_from(folder: Path, number: int) -> None:
    (folder / "finished.json").unlink(missing_ok=True)
    for later in count(number):
        path = shard_path(folder, later)
        if not path.exists():
            return
        path.unlink()


def _wants_more(shards: Sequence[Shard], finished: dict[str, int], limits: Limits) -> bool:
    """Whether a later run asks for more tokens than an earlier one made."""
    return limits.tokens > finished["tokens"] and not finished["end"]


@dataclass
class _Maker:
    """Makes shards in their order, several in work at once."""

    engine: Engine
    source: Source
    recipe: Recipe
    folder: Path
    held_out: set[str]
    shards: list[Shard] = field(default_factory=list)
    exhausted: bool = False

    def work(self, limits: Limits, progress: Progress, should_stop: Callable[[], bool]) -> None:
        self._limits, self._progress, self._should_stop = limits, progress, should_stop
        self._done: dict[int, Text | None] = {}
        self._since = monotonic()
        self._tokens = sum(shard.answer_tokens for shard in self.shards)
        self._spent = sum(shard.seconds for shard in self.shards)
        if self._wants_more():
            decode_all(self.engine, self._jobs(), WIDTH, self._after_round)
        if self._wants_more() and not should_stop():  # the source has come to its end
            self.exhausted = True
            self._write_ready(last=True)

    def _wants_more(self) -> bool:
        limits = self._limits
        late = limits.seconds is not None and self.shards and self._spent >= limits.seconds
        return self._tokens < limits.tokens and not late

    def _after_round(self) -> bool:
        self._write_ready()
        return self._wants_more() and not self._should_stop()

    def _write_ready(self, *, last: bool = False) -> None:
        """Write every next shard whose texts are all done."""
        while self._wants_more():
            first = len(self.shards) * SHARD
            numbers = [n for n in range(first, first + SHARD) if not last or n in self._done]
            if not numbers or not all(number in self._done for number in numbers):
                return
            made = [self._done.pop(number) for number in numbers]
            texts = [text for text in made if text is not None]
            now = monotonic()
            shard = Shard(texts, now - self._since)
            write_shard(shard_path(self.folder, len(self.shards)), texts, shard.seconds)
            self._since = now
            self.shards.append(shard)
            self._tokens += shard.answer_tokens
            self._spent += shard.seconds
            self._progress(self._tokens, self._limits.tokens)

    def _jobs(self) -> Iterator[Job]:
        """The job that each text begins with."""
        for number in count(len(self.shards) * SHARD):
            if self.source.texts is not None and number >= self.source.texts:
                return
            job = self._job(number, self.source.ask(number))
            if job is not None:
                yield job

    def _job(self, number: int, ask: Ask) -> Job | None:
        if ask.plain is not None:
            self._done[number] = self._as_it_stands(ask)
            return None
        if ask.content is not None or ask.messages:
            return self._answer(number, ask.kind, messages_of(ask))
        if self.engine.template is None:
            return self._continued(number, ask.kind, ask.opening)
        return self._turn(number, ask)

    def _as_it_stands(self, ask: Ask) -> Text | None:
        """A text of the user's, all of which is to be guessed."""
        tokens = self.engine.tokenize(ask.plain or "")[: self.recipe.prompt_tokens + self.recipe.answer_tokens]
        return Text(np.array(tokens, np.int32), 1, ask.kind, 1.0, 0) if len(tokens) > LEAST_ANSWER else None

    def _turn(self, number: int, ask: Ask) -> Job:
        """The target finishes the user's turn, which is then answered."""
        rendered = self.engine.render([{"role": "user", "content": _MARK}])
        if _MARK not in rendered:
            raise ChatTemplateError("The model's chat template changes what a user says; give prompts of your own.")
        prompt = self.engine.tokenize_rendered(rendered.split(_MARK)[0] + ask.opening)

        def done(completion: Completion) -> Job | None:
            content = (ask.opening + completion.text).strip()
            if len(content) < 4 or plain_text(content) in self.held_out:
                self._done[number] = None
                return None
            return self._answer(number, ask.kind, [{"role": "user", "content": content}])

        return Job(prompt, _options(1.0, TURN_TOKENS, _seed(self.recipe.seed, "turn", number)), done)

    def _answer(self, number: int, kind: str, messages: list[dict[str, str]]) -> Job | None:
        if self.engine.template is None:
            return self._continued(number, kind, "\n\n".join(message["content"] for message in messages))
        return self._job_for(number, kind, self.engine.tokenize(messages))

    def _continued(self, number: int, kind: str, text: str) -> Job | None:
        return self._job_for(number, kind, self.engine.tokenize(text or "The"))

    def _job_for(self, number: int, kind: str, prompt: list[int]) -> Job | None:
        recipe = self.recipe
        if len(prompt) > recipe.prompt_tokens:
            self._done[number] = None
            return None
        seed = _seed(recipe.seed, "answer", number)
        temperature = 0.0 if seed % 1000 < 1000 * recipe.greedy_share else 1.0

        def done(completion: Completion) -> None:
            del completion.tokens[before_looping(completion.tokens) :]
            good = len(completion.tokens) >= LEAST_ANSWER
            self._done[number] = _text(completion, kind, temperature, seed) if good else None

        return Job(_ids(prompt), _options(temperature, recipe.answer_tokens, seed), done)


def before_looping(tokens: Sequence[int]) -> int:
    """How many tokens there are before an answer has said nothing new for a while: loops teach only to loop."""
    seen: set[tuple[int, ...]] = set()
    repeated = 0
    for end in range(GRAM, len(tokens) + 1):
        gram = tuple(tokens[end - GRAM : end])
        repeated = repeated + 1 if gram in seen else 0
        seen.add(gram)
        if repeated == MOST_REPEATED:
            return end
    return len(tokens)


def _ids(prompt: list[int]) -> Prompt:
    return prompt
