"""Markdown of a model to HTML that is safe to show: whatever a model writes may have been put into its mouth.

Two walls stand one behind the other. markdown-it-py escapes HTML in the text instead of passing it on and refuses
dangerous links; nh3 then keeps a short list of elements and attributes and drops everything else. Nothing that is
left makes a browser ask for anything before somebody clicks: images become links.
"""

import re
from collections.abc import Sequence
from typing import Any

import nh3
from markdown_it import MarkdownIt
from markdown_it.common.utils import escapeHtml
from markdown_it.renderer import RendererHTML
from markdown_it.rules_core import StateCore
from markdown_it.token import Token

LINKS = {"http", "https", "mailto"}
LANGUAGE = re.compile(r"language-[\w+#.-]{1,30}")
ALIGNMENT = re.compile(r"text-align:(left|center|right)")


def render(text: str) -> str:
    """HTML of CommonMark with tables and strikethrough."""
    # A lone surrogate, half of a character that streaming cut in two, exists in JSON but not in UTF-8.
    return sanitised(_markdown.render(text.encode("utf-8", "replace").decode("utf-8")))


def sanitised(html: str) -> str:
    """The second wall: what of this HTML is on the list."""
    return _cleaner.clean(html)


def _image(
    renderer: RendererHTML, tokens: Sequence[Token], index: int, options: Any, environment: dict[str, Any]
) -> str:
    """An image as a link to it: showing it would tell its server that the answer is being read."""
    words = renderer.renderInlineAsText(tokens[index].children, options, environment)
    address = escapeHtml(str(tokens[index].attrs["src"]))
    return f'<a href="{address}">{escapeHtml(words) or address}</a>'


def _align(state: StateCore) -> None:
    """Columns are aligned by an attribute: the page's content security policy allows no styles in elements."""
    for token in state.tokens:
        if token.type in ("th_open", "td_open") and (found := ALIGNMENT.fullmatch(str(token.attrs.pop("style", "")))):
            token.attrs["align"] = found[1]


def _keep(element: str, attribute: str, value: str) -> str | None:
    if (element, attribute) == ("code", "class"):
        return value if LANGUAGE.fullmatch(value) else None
    return value


def _parser() -> MarkdownIt:
    parser = MarkdownIt("commonmark", {"html": False}).enable(["table", "strikethrough"])
    parser.core.ruler.push("align", _align)
    parser.add_render_rule("image", _image)
    return parser


_markdown = _parser()
_cleaner = nh3.Cleaner(
    tags={"a", "br", "code", "em", "s", "strong"}
    | {"blockquote", "h1", "h2", "h3", "h4", "h5", "h6", "hr", "li", "ol", "p", "pre", "ul"}
    | {"table", "tbody", "td", "th", "thead", "tr"},
    attributes={"a": {"href", "title"}, "code": {"class"}, "ol": {"start"}, "td": {"align"}, "th": {"align"}},
    attribute_filter=_keep,
    url_schemes=LINKS,
    url_relative="deny",
    link_rel="noopener noreferrer",
    set_tag_attribute_values={"a": {"target": "_blank"}},
)
