"""The tokenizer of a native model: llama.cpp's, which reads it from the same file without any weights."""

import os
import weakref
from typing import Any

from slipstream.errors import ModelFileError
from slipstream.models.gguf import GgufHeader
from slipstream.runtime.llamacpp import binding
from slipstream.runtime.llamacpp.vocabulary import LlamaCppVocabulary


class NativeVocabulary(LlamaCppVocabulary):
    """A vocabulary that owns what it is read from."""

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
        self._free = weakref.finalize(self, llama.llama_model_free, model)
        super().__init__(llama.llama_model_get_vocab(model))

    def close(self) -> None:
        """Free it; later use is an error."""
        super().close()
        self._free()
