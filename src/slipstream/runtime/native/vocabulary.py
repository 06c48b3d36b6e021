"""The tokenizer of a native model: Slipstream's own, or llama.cpp's for a file that ours does not know."""

import os
import weakref
from typing import Any

from slipstream.core.protocols import Vocabulary
from slipstream.errors import ModelFileError
from slipstream.models.gguf import GgufHeader
from slipstream.runtime.llamacpp import binding
from slipstream.runtime.llamacpp.vocabulary import LlamaCppVocabulary
from slipstream.tokenizer import load_tokenizer


def vocabulary_of(header: GgufHeader) -> tuple[Vocabulary, str | None]:
    """The tokenizer of a file, and a sentence for people where it is llama.cpp's, which then has to be installed.

    Raises ModelFileError if neither can read it.
    """
    try:
        return load_tokenizer(header), None
    except ModelFileError as refusal:
        if not binding.installed():
            raise type(refusal)(f"{refusal} llama.cpp may know what to do; {binding.INSTALL}") from None
        return BorrowedVocabulary(header), f"Texts become tokens by llama.cpp. {refusal}"


class BorrowedVocabulary(LlamaCppVocabulary):
    """A vocabulary that llama.cpp reads from a file without its weights; freed with its last user."""

    def __init__(self, header: GgufHeader) -> None:
        llama = binding.library()
        params = llama.llama_model_default_params()
        params.vocab_only = True
        binding.log.clear()
        model: Any = llama.llama_model_load_from_file(os.fsencode(header.path), params)
        if not model:
            raise ModelFileError(
                f"llama.cpp cannot read the vocabulary of {header.path}: {binding.log.reason()}; "
                "download or convert the file again."
            )
        weakref.finalize(self, llama.llama_model_free, model)
        super().__init__(llama.llama_model_get_vocab(model))
