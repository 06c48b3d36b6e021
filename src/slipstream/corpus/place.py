"""Where a corpus lies: one folder for each vocabulary, since ids mean nothing without it."""

import hashlib
from pathlib import Path

from slipstream.models import Vocabulary
from slipstream.models.paths import cache_directory


def corpus_directory() -> Path:
    """The default place, in our cache. May not exist yet."""
    return cache_directory() / "corpus"


def vocabulary_name(vocabulary: Vocabulary) -> str:
    """32 hex digits: models whose ids mean the same have the same corpus, whatever their weights."""
    digest = hashlib.sha256(vocabulary.model.encode())
    digest.update(vocabulary.tokens.encoding(len(vocabulary)))
    return digest.hexdigest()[:32]
