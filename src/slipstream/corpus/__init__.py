"""What was said before, kept on disk and searched: a private, bounded ring of texts for each vocabulary."""

from slipstream.corpus.corpus import LOCAL, Corpus
from slipstream.corpus.index import CorpusIndex
from slipstream.corpus.place import corpus_directory, vocabulary_name
from slipstream.corpus.ring import MOST_TOKENS, Record, Ring, scope_key

__all__ = [
    "LOCAL",
    "MOST_TOKENS",
    "Corpus",
    "CorpusIndex",
    "Record",
    "Ring",
    "corpus_directory",
    "scope_key",
    "vocabulary_name",
]
