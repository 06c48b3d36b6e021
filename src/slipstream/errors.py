"""Everything that Slipstream raises on purpose.

    SlipstreamError                 exit code 1
    ├── UsageError                  exit code 2: an option or argument that cannot be
    ├── UnknownModelError           no such name; names the nearest
    ├── ModelFileError              the file cannot be read as a model
    │   └── UnsupportedModelError   a good file that this runtime cannot run
    ├── DownloadError               network, disk or checksum, while fetching
    ├── StorageError                disk full, no permission, while writing
    ├── ProfileError                a saved profile that cannot be read
    ├── VocabularyMismatchError     target and draft model do not share a vocabulary
    ├── ContextLimitError           prompt does not fit the context
    ├── ChatTemplateError           the model's template cannot be used
    ├── GrammarError                a text could not go on by its grammar
    ├── BusyError                   a server that takes no more requests now
    ├── TooSlowError                an answer that took longer than a server allows
    └── RuntimeUnavailableError     a runtime is missing or failed (library, memory, device)

Every message is one sentence or two that say what is wrong and what to do next.
The command line prints the message alone; a traceback means a bug of ours.
"""


class SlipstreamError(Exception):
    """Base of everything a user can cause. `exit_code` is what the command line returns."""

    exit_code = 1


class UsageError(SlipstreamError):
    """An option or argument with an impossible value; the message names the range."""

    exit_code = 2


class UnknownModelError(SlipstreamError):
    """A model name that is neither a file nor known; the message names the nearest."""


class ModelFileError(SlipstreamError):
    """A file that cannot be read as a model: missing, empty, truncated or damaged."""


class UnsupportedModelError(ModelFileError):
    """A well-formed file that the chosen runtime cannot run."""


class DownloadError(SlipstreamError):
    """A download that did not complete; nothing half-written stays behind."""


class StorageError(SlipstreamError):
    """The disk is full or the place may not be written to."""


class ProfileError(SlipstreamError):
    """A profile of `slipstream advise --save` that cannot be read; the message names the file."""


class VocabularyMismatchError(SlipstreamError):
    """Target and draft model disagree about what a token id means."""


class ContextLimitError(SlipstreamError):
    """The prompt does not fit the context; the message says both numbers."""


class ChatTemplateError(SlipstreamError):
    """The model carries no chat template, or one that fails."""


class GrammarError(SlipstreamError):
    """A text could not go on by its grammar: it takes more work than is allowed; simplify the grammar or the schema."""


class BusyError(SlipstreamError):
    """A server's queue is full, or it is shutting down; the same request may succeed later."""


class TooSlowError(SlipstreamError):
    """An answer that took longer than a server allows."""


class RuntimeUnavailableError(SlipstreamError):
    """The inference library is missing, does not match, or ran out of memory."""
