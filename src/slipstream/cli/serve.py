"""`slipstream serve`: the OpenAI-compatible server and its web page."""

import difflib
import logging
import os
import re
import tomllib
from collections.abc import Callable, Sequence
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from slipstream.cli.settings import CORPUS_VARIABLE, DRAFT_LENGTH
from slipstream.errors import RuntimeUnavailableError, StorageError, UsageError

if TYPE_CHECKING:
    from slipstream.engine import Engine

MODEL, SPECULATION, NETWORK, LIMITS = "Model", "Speculation", "Network", "Limits"
MOST_SECONDS = 1_000_000
KEY, KEY_FILE = "SLIPSTREAM_API_KEY", "SLIPSTREAM_API_KEY_FILE"
LOOPBACK = ("localhost", "127.0.0.1", "[::1]")
"""Names that always mean this machine, which no page of somebody else's can have."""


def _option(panel: str, text: str, *names: str, **more: Any) -> Any:
    return typer.Option(*names, help=text, rich_help_panel=panel, **more)


def _configured(context: typer.Context, path: Path | None) -> Path | None:
    """Read the configuration file: its values are defaults of the options, below flags and environment."""
    if path is None:
        return None
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"The configuration {path} cannot be read: {getattr(error, 'strerror', error)}.") from None
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"The configuration {path} is not TOML: {error}.") from None
    known = {one.name: one for one in context.command.params if one.name and one.name not in ("config", "help")}
    context.default_map = defaults = {}
    for name, value in values.items():
        option = name.replace("-", "_")
        if option not in known:
            near = difflib.get_close_matches(option, known, 1)
            hint = f"; did you mean {near[0]}?" if near else "."
            raise UsageError(f"The configuration {path} has an unknown setting {name}{hint}")
        if isinstance(value, bool):  # which would count as 0 or 1
            raise UsageError(f"The configuration {path} has {name} = {str(value).lower()}, which no setting can be.")
        alone = getattr(known[option], "multiple", False) and not isinstance(value, list)
        defaults[option] = [value] if alone else value
    return path


def serve(
    context: typer.Context,
    config: Annotated[
        Path | None,
        _option(
            NETWORK,
            "A TOML file with these options, such as `port = 9000`. Flags and SLIPSTREAM_... variables come before it.",
            is_eager=True,
            callback=_configured,
            envvar="SLIPSTREAM_CONFIG",
        ),
    ] = None,
    model: Annotated[
        str,
        _option(
            MODEL,
            "A .gguf file, a name that `slipstream models` lists, or hf:owner/repo/file.gguf.",
            "-m",
            "--model",
            envvar="SLIPSTREAM_MODEL",
        ),
    ] = "smollm2-135m",
    ctx: Annotated[
        int | None,
        _option(
            MODEL, "Tokens that each text's context holds. Default: the model's, at most 4096.", envvar="SLIPSTREAM_CTX"
        ),
    ] = None,
    runtime: Annotated[
        Literal["auto", "native", "llamacpp"],
        _option(MODEL, "What runs the model.", envvar="SLIPSTREAM_RUNTIME"),
    ] = "auto",
    threads: Annotated[
        int | None,
        _option(MODEL, "Threads. Default: the physical cores.", "-t", "--threads", envvar="SLIPSTREAM_THREADS"),
    ] = None,
    draft: Annotated[
        str | None,
        _option(
            SPECULATION,
            "Who drafts, as for `slipstream run`. Default: what `slipstream advise --save` found, else auto: suffix, "
            "and head where one comes with Slipstream for the model.",
            "-d",
            "--draft",
            envvar="SLIPSTREAM_DRAFT",
        ),
    ] = None,
    speculation: Annotated[
        Literal["auto", "on", "off"],
        _option(SPECULATION, "As for `slipstream run`; a request may ask for less.", envvar="SLIPSTREAM_SPECULATION"),
    ] = "auto",
    num_draft_tokens: Annotated[
        int | None,
        _option(
            SPECULATION,
            DRAFT_LENGTH,
            envvar="SLIPSTREAM_NUM_DRAFT_TOKENS",
        ),
    ] = None,
    corpus: Annotated[
        str,
        _option(
            SPECULATION,
            "Texts that suffix drafts from, and adds to: a folder, on for the one in Slipstream's cache, or off.",
            envvar=CORPUS_VARIABLE,
            metavar="PATH|off",
        ),
    ] = "on",
    corpus_scope: Annotated[
        Literal["user", "shared"],
        _option(
            SPECULATION,
            "Whose texts are drafted from: those of the same user, by API key, or all.",
            envvar="SLIPSTREAM_CORPUS_SCOPE",
        ),
    ] = "user",
    host: Annotated[
        str,
        _option(
            NETWORK, "Address to listen on. 0.0.0.0 is the whole network: then set a key.", envvar="SLIPSTREAM_HOST"
        ),
    ] = "127.0.0.1",
    port: Annotated[
        int, _option(NETWORK, "Port to listen on; 0 takes a free one.", min=0, max=65535, envvar="SLIPSTREAM_PORT")
    ] = 8080,
    api_key: Annotated[
        str | None,
        _option(
            NETWORK,
            "What clients must send as their API key. Better in the variable or a file.",
            envvar=KEY,
        ),
    ] = None,
    api_key_file: Annotated[
        Path | None,
        _option(
            NETWORK,
            "A file that holds the key, or several, each on a line of its own and for one user.",
            envvar=KEY_FILE,
        ),
    ] = None,
    cors_origin: Annotated[
        list[str] | None,
        _option(
            NETWORK,
            "A site whose pages may ask this server, such as https://example.org; * is any. May be repeated.",
            envvar="SLIPSTREAM_CORS_ORIGIN",
        ),
    ] = None,
    allowed_host: Annotated[
        list[str] | None,
        _option(
            NETWORK,
            "A name by which the server may be called besides localhost, for a proxy in front of it. May be repeated. "
            "Default: on a loopback address none but that address, else any.",
            envvar="SLIPSTREAM_ALLOWED_HOST",
        ),
    ] = None,
    parallel: Annotated[
        int, _option(LIMITS, "Texts that are decoded at once.", min=1, max=256, envvar="SLIPSTREAM_PARALLEL")
    ] = 4,
    max_queue: Annotated[
        int,
        _option(LIMITS, "Requests that may wait; more get 503.", min=0, max=100_000, envvar="SLIPSTREAM_MAX_QUEUE"),
    ] = 64,
    timeout: Annotated[
        float, _option(LIMITS, "Seconds that an answer may take; 0 is no limit.", min=0, envvar="SLIPSTREAM_TIMEOUT")
    ] = 600.0,
    shutdown_timeout: Annotated[
        float,
        _option(
            LIMITS,
            "Seconds that answers have to end in when the server is stopped.",
            min=0,
            envvar="SLIPSTREAM_SHUTDOWN_TIMEOUT",
        ),
    ] = 30.0,
    max_body: Annotated[
        int, _option(LIMITS, "Bytes of a request.", min=1024, max=2**30, envvar="SLIPSTREAM_MAX_BODY")
    ] = 4 * 2**20,
    log_format: Annotated[
        Literal["text", "json"],
        _option(LIMITS, "Lines on stderr, one for each request.", envvar="SLIPSTREAM_LOG_FORMAT"),
    ] = "text",
) -> None:
    """Serve a model to OpenAI clients and to the browser.

    Open the address that it prints. Stop it with Ctrl-C: answers that are running may end first.
    """
    try:
        from slipstream.server.serving import Address, run_server, say
    except ImportError as error:
        raise RuntimeUnavailableError(
            f"The server needs packages that are not here ({error.name}); "
            "install them with: pip install 'slipstream-decoding[server]'"
        ) from None
    from slipstream.cli import terminal
    from slipstream.core.params import check_number
    from slipstream.server.app import Doors
    from slipstream.server.log import start_log
    from slipstream.server.service import Limits

    keys = _keys(api_key, api_key_file, context)
    names = _names(host, allowed_host or ())
    origins = _origins(cors_origin or ())
    for option, seconds in (("--timeout", timeout), ("--shutdown-timeout", shutdown_timeout)):
        check_number(option, seconds, 0, MOST_SECONDS)
    start_log(log_format)
    logged = logging.getLogger("slipstream.server").info
    notice, announce = (logged, logged) if log_format == "json" else (terminal.say, say)
    if not keys and not _is_loopback(host):
        notice(f"Without a key anybody who reaches {host} may ask; set one with --api-key-file or {KEY}.")
    with Address(host, port).bind() as listener:
        run_server(
            _load(model, ctx, runtime, threads, draft, speculation, num_draft_tokens, corpus, parallel, notice),
            listener,
            Doors(keys, origins, names),
            Limits(max_body, timeout or None, shutdown_timeout),
            parallel=parallel,
            queue=max_queue,
            shared=corpus_scope == "shared",
            announce=announce,
        )


def _origins(given: Sequence[str]) -> tuple[str, ...]:
    """Sites whose pages may ask. Raises UsageError for what no browser calls a site."""
    for origin in given:
        if not re.fullmatch(r"\*|[a-z][a-z0-9+.-]*://[^/?#\s]+", origin):
            raise UsageError(f"{origin} is no site; write --cors-origin as https://example.org, without a path.")
    return tuple(given)


def _names(host: str, allowed: Sequence[str]) -> tuple[str, ...]:
    """By which the server may be called; none for any. Raises UsageError for what is no name."""
    for name in allowed:
        if not re.fullmatch(r"\*|(\*\.)?[\w.-]+|\[?[0-9a-fA-F:.]+\]?", name):
            raise UsageError(
                f"{name} is no name of a server; write --allowed-host as example.org or *.example.org, without a port."
            )
    own = (f"[{host}]" if ":" in host else host,) if _is_loopback(host) else ()
    return (*LOOPBACK, *own, *allowed) if own or allowed else ()


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def _source(context: typer.Context, option: str) -> int:
    """Where its value comes from: 0 the command line, 1 the environment, 2 the configuration file, 3 nowhere."""
    source = context.get_parameter_source(option)
    places = ["COMMANDLINE", "ENVIRONMENT", "DEFAULT_MAP"]
    return places.index(source.name) if source and source.name in places else len(places)


def _keys(given: str | None, file: Path | None, context: typer.Context) -> tuple[str, ...] | None:
    """The API keys, from where they were said most directly; raises UsageError for an empty one, or two places in one.

    None for a server without keys.
    """
    direct, from_file = _source(context, "api_key"), _source(context, "api_key_file")
    _refuse_blank(min(direct, from_file))
    if given is not None and file is not None:
        if direct == from_file:
            raise UsageError("Give the key either as --api-key or as --api-key-file, not both.")
        file = file if from_file < direct else None
    if file is not None:
        try:
            given = file.read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise StorageError(f"The key in {file} cannot be read: {getattr(error, 'strerror', error)}.") from None
    if given is None:
        return None
    keys = [key.strip(" \t\r") for key in (given.split("\n") if file is not None else [given])]
    keys = [key for key in keys if key or len(keys) == 1]
    if not all(key and key.isprintable() for key in keys):
        raise UsageError("The API key is empty or has unprintable characters; choose another one.")
    return tuple(dict.fromkeys(keys))


def _refuse_blank(place: int) -> None:
    """Raise UsageError for a variable that is there and empty: it was to lock the server, and would leave it open.

    place: where there is a key, as `_source` has it; on the command line or in the other variable it comes first
    """
    for variable in (KEY, KEY_FILE):
        if place > 1 and os.environ.get(variable) == "":
            raise UsageError(f"{variable} is set and empty; put the key there, or unset it for a server without one.")


def _load(
    model: str, ctx: int | None, runtime: Any, threads: int | None, draft: str | None, speculation: Any,
    length: int | None, corpus: str, parallel: int, say: Callable[[str], None],
) -> "Engine":  # fmt: skip
    from slipstream.cli import answer
    from slipstream.cli.settings import Settings

    settings = Settings(
        model=model, ctx=ctx, runtime=runtime, threads=threads, draft=draft, speculation=speculation,
        num_draft_tokens=length, corpus=corpus,
    )  # fmt: skip
    engine = answer.load(settings, max_sequences=parallel, say=say)
    engine.expect_drafts()
    return engine
