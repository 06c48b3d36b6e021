"""An answer while it comes: tokens as they are committed, then the figures."""

import sys
from collections.abc import Callable
from dataclasses import replace

from slipstream.cli import figures, terminal
from slipstream.cli.interrupt import interrupts
from slipstream.cli.loading import Loading
from slipstream.cli.settings import AUTO, HEAD, Settings
from slipstream.cli.terminal import DIM, GREEN, Output
from slipstream.core.protocols import Vocabulary
from slipstream.engine import Completion, Conversation, Engine, Stream, Token
from slipstream.errors import ProfileError, SlipstreamError, UsageError
from slipstream.models import read_model_header, resolve
from slipstream.models.draft_spec import split_draft
from slipstream.models.profiles import find, profiles_directory
from slipstream.models.shipped_heads import shipped_head

# Longer than any tag; models with longer tags than this are not known.
TAIL = 128


def load(settings: Settings, max_sequences: int = 1, say: Callable[[str], None] = terminal.say) -> Engine:
    """The engine that the options ask for; says what it had to decide otherwise.

    max_sequences: texts that it can decode at once
    say:           is told that, a sentence at a time
    """
    settings.generation_options()  # impossible values are refused before anybody waits
    settings, found = with_profile(settings)
    options = replace(settings.model_options(), max_sequences=max_sequences)
    speculation = settings.speculation_options()
    with Loading(settings.model) as loading, interrupts.leaving():
        engine = Engine.load(
            settings.model, draft=settings.drafter, options=options, progress=loading.report, **speculation
        )
    for notice in [*([] if found is None else [found]), *engine.notices]:
        say(notice)
    if settings.show_accepted and not terminal.may_style(sys.stdout):
        say("--show-accepted needs a terminal with colours; FORCE_COLOR=1 sends them into a pipe.")
    return engine


def with_profile(settings: Settings) -> tuple[Settings, str | None]:
    """The settings with what `slipstream advise --save` found for the model where they name no drafter.

    And a sentence about that. A profile that cannot be used is said, too, and left out.
    """
    settings.model_options(), settings.speculation_options()  # impossible values, before a model is looked for
    if settings.draft is not None or settings.speculation == "off" or not profiles_directory().is_dir():
        return settings, None
    try:
        profile = find(resolve(settings.model), None if settings.runtime == "auto" else settings.runtime)
    except ProfileError as error:
        return settings, f"{error} The default drafts meanwhile."
    if profile is None:
        return settings, None
    if profile.missing is not None:
        return settings, profile.missing
    if HEAD in split_draft(profile.draft) and not _has_head(settings.model):
        return settings, None  # whoever takes the default is told what is wrong with the head
    chosen = replace(
        settings,
        draft=AUTO if profile.draft == f"suffix+{HEAD}" else profile.draft,  # as auto, it is loaded or left out
        draft_runtime=profile.draft_runtime if settings.draft_runtime == "auto" else settings.draft_runtime,
        num_draft_tokens=settings.num_draft_tokens
        if settings.num_draft_tokens is not None
        else profile.num_draft_tokens,
    )
    gain = "" if profile.draft == "none" else f" ({profile.ratio:.2f}x when it was measured)"
    return chosen, f"Drafts by {profile.draft}, as slipstream advise found for {profile.target}{gain}."


def _has_head(model: str) -> bool:
    """Whether the head that comes with Slipstream for a model is there and whole."""
    try:
        return shipped_head(read_model_header(resolve(model))) is not None
    except SlipstreamError:
        return False


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
        terminal.say(str(figures.policy(engine)["explanation"]))
