"""An answer while it comes: tokens as they are committed, then the figures."""

import sys

from slipstream.cli import figures, terminal
from slipstream.cli.interrupt import interrupts
from slipstream.cli.loading import Loading
from slipstream.cli.settings import Settings
from slipstream.cli.terminal import DIM, GREEN, Output
from slipstream.core.protocols import Vocabulary
from slipstream.engine import Completion, Conversation, Engine, Stream, Token
from slipstream.errors import UsageError

# Longer than any tag; models with longer tags than this are not known.
TAIL = 128


def load(settings: Settings) -> Engine:
    """The engine that the options ask for; says what it had to decide otherwise."""
    options = settings.model_options()
    settings.generation_options()  # impossible values are refused before anybody waits
    drafter, speculation = settings.drafter, settings.speculation_options()
    with Loading(settings.model) as loading, interrupts.leaving():
        engine = Engine.load(settings.model, draft=drafter, options=options, progress=loading.report, **speculation)
    for notice in engine.notices:
        terminal.say(notice)
    if settings.show_accepted and not terminal.may_style(sys.stdout):
        terminal.say("--show-accepted needs a terminal with colours; FORCE_COLOR=1 sends them into a pipe.")
    return engine


def check_thinking(engine: Engine, think: bool | None) -> None:
    """Raise UsageError for a switch that would do nothing."""
    template = engine.template
    if think is None or template is None or template.switches_thinking:
        return
    if think or template.supports_thinking:
        raise UsageError(
            f"{engine.target.name} has no switch for thinking in its chat template; leave out --think/--no-think."
        )


class Thinking:
    """Follows the tags around a model's thinking. `opened`: the prompt ended inside it."""

    def __init__(self, tags: tuple[str, str] | None, opened: bool, vocabulary: Vocabulary) -> None:
        self._tags = tags
        self._inside = opened
        self._vocabulary = vocabulary
        self._tail = ""

    def push(self, token: Token) -> bool:
        """Whether this token belongs to the thinking, tags included."""
        if self._tags is None:
            return False
        before = self._inside
        control = not self._vocabulary.token_bytes(token.id)
        self._tail = (self._tail + (self._vocabulary.token_name(token.id) if control else token.text))[-TAIL:]
        if self._tags[self._inside] in self._tail:
            self._inside, self._tail = not self._inside, ""
        return before or self._inside


def show(stream: Stream, output: Output, thinking: Thinking, *, colour_accepted: bool) -> None:
    """Write an answer as it is generated. The first Ctrl-C ends it; what there is stays."""
    shown = 0
    with stream, interrupts.cancelling(stream.cancel):
        for token in stream:
            styles = (DIM, thinking.push(token)), (GREEN, colour_accepted and token.accepted)
            output.write(token.text, ";".join(style for style, wanted in styles if wanted))
            shown += len(token.text)
    # an interrupted answer may have held back the beginning of a stop string
    output.write(stream.completion.text[shown:])
    output.end_line()


def show_turn(conversation: Conversation, stream: Stream, output: Output, settings: Settings) -> None:
    """Write the answer to the last turn of a conversation."""
    template = conversation.engine.template
    tags = None if template is None else template.thinking_tags
    thinking = Thinking(tags, conversation.turns[-1].opened, conversation.engine.target.vocabulary)
    show(stream, output, thinking, colour_accepted=settings.show_accepted is not False)


def show_figures(completion: Completion, engine: Engine, *, explain: bool) -> None:
    """One line on stderr, broken between figures where a terminal is narrow; below it what the policy says."""
    parts = figures.summary(completion)
    terminal.say(figures.fit(parts, terminal.width(sys.stderr)) if sys.stderr.isatty() else " · ".join(parts))
    if explain:
        terminal.say(str(engine.policy.describe()["explanation"]))
