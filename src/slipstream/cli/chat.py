"""`slipstream chat`: a conversation, and the commands in it."""

import difflib
import json
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import typer

from slipstream.cli import terminal
from slipstream.cli.interrupt import EXIT_CODE, interrupts
from slipstream.cli.settings import Settings, usual_corpus, with_settings
from slipstream.cli.terminal import Output
from slipstream.errors import SlipstreamError, StorageError, UsageError

if TYPE_CHECKING:
    from slipstream.core.protocols import Model
    from slipstream.engine import Conversation, GenerationOptions, Stream

PROMPT, CONTINUED = "> ", ". "


@with_settings
def chat(settings: Settings) -> None:
    """Talk with a model. /help lists the commands; Ctrl-C stops an answer, Ctrl-D leaves.

    Where standard input is no terminal, each of its lines is one turn.
    """
    from slipstream.cli import answer
    from slipstream.engine import Conversation

    if settings.corpus is None:
        settings = replace(settings, corpus=usual_corpus())
    with answer.load(settings) as engine:
        answer.check_thinking(engine, settings.think)
        engine.render([{"role": "user", "content": "a"}])  # a model without a template is refused now, not later
        conversation = Conversation(engine, system=settings.system, think=settings.think, seed=settings.seed)
        if is_interactive():
            terminal.say(f"{engine.target.name} is listening. /help lists the commands, Ctrl-D leaves.")
        Chat(conversation, settings).loop()


class Chat:
    """Reads turns and commands until there are no more."""

    def __init__(self, conversation: "Conversation", settings: Settings) -> None:
        self.conversation = conversation
        self._settings = settings
        self._options: GenerationOptions = settings.generation_options()
        self._options.pop("seed", None)  # the conversation's own from here on
        self._output = Output()
        self._left = False

    def loop(self) -> None:
        interactive = is_interactive()
        while not self._left:
            try:
                line = read_turn(interactive)
            except EOFError:
                break
            except KeyboardInterrupt:
                terminal.say("\nCtrl-D or /exit leaves.")
                continue
            try:
                self.take(line)
            except SlipstreamError as error:
                if not interactive:
                    raise
                terminal.complain(str(error))
            if interrupts.caught and not interactive:
                raise typer.Exit(EXIT_CODE)
        if interactive and not self._left:
            self._output.write("\n")

    def take(self, line: str) -> None:
        """Do what one line says."""
        if line.startswith("/"):
            self._command(line)
        elif line.strip():
            self._answer(self.conversation.ask(line, **self._options))

    def _answer(self, stream: "Stream") -> None:
        from slipstream.cli import answer

        if self.conversation.notice:
            terminal.say(self.conversation.notice)
        answer.show_turn(self.conversation, stream, self._output, self._settings)
        answer.show_figures(stream.completion, self.conversation.engine, explain=self._settings.explain)

    def _command(self, line: str) -> None:
        name, _, argument = line.partition(" ")
        if name == "/quit":
            name = "/exit"
        command = COMMANDS.get(name)
        if command is None:
            near = difflib.get_close_matches(name, COMMANDS, 1)
            hint = f"did you mean {near[0]}?" if near else "/help lists them all."
            raise UsageError(f"There is no command {name}; {hint}")
        command.action(self, argument.strip())

    def help(self, _: str) -> None:
        lines = [(f"{name} {command.argument}", command.help) for name, command in COMMANDS.items()]
        lines.append(("... \\", "A backslash at a line's end: the turn goes on in the next line."))
        for what, meaning in lines:
            self._output.write(f"{what:{max(len(what) for what, _ in lines)}}  {meaning}\n")

    def leave(self, _: str) -> None:
        self._left = True

    def clear(self, _: str) -> None:
        self.conversation.clear()
        terminal.say("Everything that was said is forgotten.")

    def system(self, text: str) -> None:
        if text:
            self.conversation.system = text
        terminal.say(f"System text: {self.conversation.system or 'the one of the model, if it has any'}")

    def regenerate(self, _: str) -> None:
        self._answer(self.conversation.regenerate(**self._options))

    def stats(self, _: str) -> None:
        for line in describe(self.conversation):
            self._output.write(line + "\n")

    def save(self, name: str) -> None:
        if not name:
            raise UsageError("Name a file: /save chat.md, or /save chat.json for the messages as JSON.")
        save(self.conversation, Path(name).expanduser())
        terminal.say(f"Saved to {name}.")

    def seed(self, text: str) -> None:
        try:
            seed = int(text)
        except ValueError:
            raise UsageError(f"/seed wants a whole number, not {text!r}.") from None
        self.conversation.seed = seed
        terminal.say(f"Seed {seed} from the next answer on.")


class Command(NamedTuple):
    """What a line that begins with a slash does."""

    argument: str
    help: str
    action: Callable[[Chat, str], None]


COMMANDS = {
    "/help": Command("", "These lines.", Chat.help),
    "/exit": Command("", "Leave (Ctrl-D does, too).", Chat.leave),
    "/clear": Command("", "Forget everything that was said.", Chat.clear),
    "/system": Command("TEXT", "New instructions for the model; without a text, show them.", Chat.system),
    "/regenerate": Command("", "Another answer to what was said last, with the next seed.", Chat.regenerate),
    "/stats": Command("", "Figures of this conversation.", Chat.stats),
    "/save": Command("FILE", "Write the conversation as Markdown, or as JSON if FILE ends in .json.", Chat.save),
    "/seed": Command("N", "Another seed from the next answer on.", Chat.seed),
}


def is_interactive() -> bool:
    """Whether a person types the turns."""
    return sys.stdin.isatty()


def read_turn(interactive: bool) -> str:
    """One turn of the person; lines that end in a backslash go on. Raises EOFError at the end of input."""
    lines = [_read_line(PROMPT, interactive)]
    while lines[-1].endswith("\\"):
        lines[-1] = lines[-1][:-1]
        lines.append(_read_line(CONTINUED, interactive))
    return "\n".join(lines)


def _read_line(prompt: str, interactive: bool) -> str:
    if interactive and sys.stdout.isatty():
        _enable_editing()
        return input(prompt)
    if interactive:
        sys.stderr.write(prompt)
        sys.stderr.flush()
    try:
        line = sys.stdin.readline()
    except UnicodeDecodeError:
        raise UsageError("Standard input is not UTF-8 text; convert it, for example with iconv.") from None
    if not line:
        raise EOFError
    return line.removesuffix("\n")


def _enable_editing() -> None:
    """Arrow keys and history, where Python was built with them; importing the module is enough."""
    with suppress(ImportError):
        import readline  # noqa: F401


def describe(conversation: "Conversation") -> list[str]:
    """Figures over all turns."""
    from slipstream.cli import figures

    engine = conversation.engine
    completions = [turn.completion for turn in conversation.turns]
    if not completions:
        return ["Nothing has been said yet."]
    timings = [completion.timings for completion in completions]
    generated = sum(timing.predicted_n for timing in timings)
    seconds = sum(timing.predicted_seconds for timing in timings)
    rounds = sum(completion.statistics.rounds for completion in completions)
    tested = sum(completion.statistics.tested for completion in completions)
    accepted = sum(completion.statistics.accepted for completion in completions)
    read, cached = sum(timing.prompt_n for timing in timings), sum(timing.cache_n for timing in timings)
    last = completions[-1]
    used = len(last.prompt_tokens) + len(last.tokens)
    return [
        f"model      {_named(engine.target)}"
        + (f", drafts by {', '.join(map(_named, small))}" if (small := engine.draft_models) else ""),
        f"turns      {len(completions)}, {conversation.forgotten} of them no longer seen by the model",
        f"context    {used} of {engine.target.context_length} tokens",
        f"prompts    {read} tokens read, {cached} reused from the KV cache",
        f"answers    {generated} tokens, {generated / seconds if seconds else 0:.1f} tok/s",
        f"drafting   {last.drafter}, {generated / rounds if rounds else 0:.2f} tokens a round, "
        + (f"{accepted / tested:.0%} of {tested} tested tokens accepted" if tested else "nothing drafted"),
        f"policy     {figures.policy(engine)['explanation']}",
        f"seed       {conversation.seed}",
    ]


def _named(model: "Model") -> str:
    return f"{model.name} ({model.runtime})"


def save(conversation: "Conversation", path: Path) -> None:
    """Write a conversation to a new file. Raises StorageError if it exists or cannot be written."""
    messages = conversation.messages()
    if path.suffix == ".json":
        text = json.dumps(messages, ensure_ascii=False, indent=2) + "\n"
    else:
        text = "".join(f"## {message['role'].capitalize()}\n\n{message['content'].strip()}\n\n" for message in messages)
    try:
        with path.open("x", encoding="utf-8", errors="replace") as file:
            file.write(text)
    except FileExistsError:
        raise StorageError(f"{path} exists; name another file.") from None
    except OSError as error:
        raise StorageError(f"{path} cannot be written: {error.strerror}; name another file.") from error
