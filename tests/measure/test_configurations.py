import pytest

from slipstream.errors import UsageError
from slipstream.measure.configurations import OFF, Configuration, parse_configuration, parse_configurations


@pytest.mark.parametrize(
    ("spec", "configuration"),
    [
        ("off", OFF),
        ("none", OFF),
        ("suffix", Configuration("suffix", "suffix", "auto", None)),
        ("suffix,speculation=on", Configuration("suffix,speculation=on", "suffix", "on", None)),
        ("model:a/b.gguf,n=4", Configuration("model:b.gguf,n=4", "a/b.gguf", "on", 4)),
        ("a,b.gguf,n=8,speculation=auto,name=x", Configuration("x", "a,b.gguf", "auto", 8)),
        ("suffix+model:a.gguf, n=1", Configuration("suffix+model:a.gguf, n=1", "suffix+a.gguf", "on", 1)),
        ("hf:owner/repo/file.gguf", Configuration("hf:file.gguf", "hf:owner/repo/file.gguf", "auto", None)),
    ],
)
def test_parsing(spec: str, configuration: Configuration) -> None:
    assert parse_configuration(spec) == configuration


@pytest.mark.parametrize(
    ("spec", "sentence"),
    [
        ("", "names no drafter"),
        ("model:", "names no drafter"),
        ("suffix,m=4", r"unknown option m; there are speculation, n, name"),
        ("suffix,speculate=on", r"unknown option speculate; did you mean speculation\?"),
        ("suffix,n=", "nothing after n="),
        ("suffix,n=4,n=5", "has n= twice"),
        ("suffix,n=0", "n must be a whole number from 1 to 64"),
        ("suffix,n=x", "n must be a whole number from 1 to 64, not 'x'"),
        ("suffix,speculation=off", "speculation=auto or speculation=on"),
        ("off,n=4", "drafts nothing"),
        ("sufix", r"no drafter sufix; did you mean suffix\?"),
        ("suffx+model:a.gguf,n=2", r"did you mean suffix\?"),
        ("offf", r"did you mean off\?"),
        ("suffix+none", r"combines none with a drafter"),
        ("none,name=plain", "drafts nothing"),
    ],
)
def test_slips_are_sentences(spec: str, sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        parse_configuration(spec)


def test_plain_decoding_is_always_there_and_first() -> None:
    assert [one.name for one in parse_configurations([])] == ["off"]
    assert [one.name for one in parse_configurations(["suffix"])] == ["off", "suffix"]
    assert [one.name for one in parse_configurations(["suffix", "off"])] == ["off", "suffix"]


def test_names_must_differ() -> None:
    with pytest.raises(UsageError, match="'suffix'; tell them apart"):
        parse_configurations(["suffix", "suffix"])
