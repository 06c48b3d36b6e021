"""Text to tokens and back, built from a model file's vocabulary; nothing of llama.cpp is needed.

`load_tokenizer` reads, builds and keeps; the `Tokenizer` it gives implements `core.protocols.Vocabulary`.
"""

from slipstream.tokenizer.overlap import Overlap, overlap
from slipstream.tokenizer.text import Detokenizer, encoded
from slipstream.tokenizer.tokenizer import Tokenizer, load_tokenizer

__all__ = ["Detokenizer", "Overlap", "Tokenizer", "encoded", "load_tokenizer", "overlap"]
