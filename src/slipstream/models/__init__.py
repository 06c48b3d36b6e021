"""Models as files: names, headers, vocabularies, chat templates, downloads. Nothing here runs a model.

`resolve` turns what a user types into a path, `pull` fetches, `list_models` lists; `read_model_header`
reads a file's header, from which `Vocabulary.from_header` and `ChatTemplate.from_header` follow.
"""

from slipstream.models.catalog import CATALOG, CatalogEntry
from slipstream.models.download import Progress, pull
from slipstream.models.gguf import (
    GgufHeader,
    SamplingDefaults,
    TensorInfo,
    read_header,
    read_model_header,
)
from slipstream.models.locate import FoundModel, list_models, resolve
from slipstream.models.packed_strings import PackedStrings
from slipstream.models.paths import cache_directory, config_directory, models_directory
from slipstream.models.template import ChatTemplate
from slipstream.models.vocabulary import Vocabulary, compare

__all__ = [
    "CATALOG",
    "CatalogEntry",
    "ChatTemplate",
    "FoundModel",
    "GgufHeader",
    "PackedStrings",
    "Progress",
    "SamplingDefaults",
    "TensorInfo",
    "Vocabulary",
    "cache_directory",
    "compare",
    "config_directory",
    "list_models",
    "models_directory",
    "pull",
    "read_header",
    "read_model_header",
    "resolve",
]
