import pytest

from slipstream.models import ChatTemplate
from slipstream.server import tool_formats
from slipstream.server.tool_formats import ToolFormat, tool_format
from tests.server import templates


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        (templates.HERMES, tool_formats.HERMES),
        (templates.LLAMA, tool_formats.LLAMA),
        (templates.MISTRAL, tool_formats.MISTRAL),
        (templates.MISTRAL_HEADED, tool_formats.MISTRAL_HEADED),
        (templates.PLAIN, tool_formats.DESCRIBED),
        (templates.XML, tool_formats.DESCRIBED),
        ("{{ tools }}", tool_formats.DESCRIBED),
        ("<tool_call> is text here", tool_formats.DESCRIBED),
        ("{% if %}", tool_formats.DESCRIBED),
    ],
)
def test_the_template_s_text_tells_the_format(source: str, expected: ToolFormat) -> None:
    assert tool_format(ChatTemplate(source)) is expected
