"""The page's routes, headers and Markdown, without a browser."""

import html
import json
import re
from html.parser import HTMLParser
from importlib.resources import files

import pytest
from starlette.applications import Starlette
from starlette.testclient import TestClient

from slipstream.server.markdown import render, sanitised
from slipstream.server.page import MARKDOWN_BYTES, page_routes

STATIC = sorted(entry.name for entry in files("slipstream.server").joinpath("static").iterdir())


@pytest.fixture(scope="module")
def client() -> TestClient:
    return TestClient(Starlette(routes=page_routes()))


class Elements(HTMLParser):
    """What a browser would make of HTML: (element, attributes) pairs, and text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data

    @property
    def names(self) -> set[str]:
        return {name for name, _ in self.found}


def test_the_page_and_all_its_files_are_served(client: TestClient) -> None:
    page = client.get("/")
    assert page.status_code == 200
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    kinds = {"css": "text/css", "html": "text/html", "js": "text/javascript", "svg": "image/svg+xml"}
    for name in STATIC:
        answer = client.get(f"/static/{name}")
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith(kinds[name.rsplit(".", 1)[1]])


def test_every_answer_carries_the_security_headers(client: TestClient) -> None:
    answers = [client.get("/"), client.get("/static/main.js"), client.get("/static/no.js")]
    answers += [client.post("/page/markdown", json={"text": "x"}), client.post("/page/markdown", content=b"[")]
    for answer in answers:
        policy = dict(part.strip().split(" ", 1) for part in answer.headers["content-security-policy"].split(";"))
        assert policy["default-src"] == "'none'"
        assert {policy[f"{kind}-src"] for kind in ("script", "style", "connect", "img")} == {"'self'"}
        assert {policy[name] for name in ("base-uri", "form-action", "frame-ancestors")} == {"'none'"}
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["referrer-policy"] == "no-referrer"


def test_a_browser_that_has_a_file_is_told_so(client: TestClient) -> None:
    first = client.get("/static/style.css")
    assert first.headers["cache-control"] == "no-cache"
    tag = first.headers["etag"]
    for known in (tag, f"W/{tag}", f'"other", {tag}', "*"):
        again = client.get("/static/style.css", headers={"If-None-Match": known})
        assert (again.status_code, again.content) == (304, b"")
        assert again.headers["etag"] == tag
    assert client.get("/static/style.css", headers={"If-None-Match": '"other"'}).status_code == 200
    assert client.get("/static/main.js").headers["etag"] != tag


@pytest.mark.parametrize(
    "name", ["no.js", "..%2fpage.py", "%2e%2e/page.py", "%2fetc%2fpasswd", "page.py", "__init__.py"]
)
def test_nothing_but_files_of_the_page_is_served(client: TestClient, name: str) -> None:
    assert client.get(f"/static/{name}").status_code == 404


def test_the_page_loads_nothing_from_elsewhere_and_nothing_inline() -> None:
    folder = files("slipstream.server").joinpath("static")
    for name in STATIC:
        text = folder.joinpath(name).read_text(encoding="utf-8")
        addresses = set(re.findall(r"(?:https?:)?//[\w-]+\.[\w.-]+", text)) - {"http://www.w3.org"}
        assert addresses == set(), name
    page = Elements(folder.joinpath("index.html").read_text(encoding="utf-8"))
    for element, attributes in page.found:
        assert element != "style"
        assert not any(name == "style" or name.startswith("on") for name in attributes)
        assert element != "script" or "src" in attributes
    loaded = [attributes.get("src") or attributes.get("href") for name, attributes in page.found if name != "a"]
    assert {address.removeprefix("static/") for address in loaded if address} <= set(STATIC)


def test_every_module_that_is_imported_exists_and_no_file_is_left_over() -> None:
    folder = files("slipstream.server").joinpath("static")
    used = {"index.html", "main.js"}
    for name in STATIC:
        text = folder.joinpath(name).read_text(encoding="utf-8")
        used |= set(re.findall(r'from "\./([\w.]+)"', text)) | set(re.findall(r'"static/([\w.]+)"', text))
    assert used == set(STATIC)


def test_every_field_has_a_label() -> None:
    text = files("slipstream.server").joinpath("static/index.html").read_text(encoding="utf-8")
    inside = re.findall(r"<label[^>]*>(?:(?!</label>).)*</label>", text, re.DOTALL)
    named = "".join(inside) + "".join(f'id="{name}"' for name in re.findall(r'<label[^>]* for="([^"]+)"', text))
    for field in re.findall(r"<(?:input|textarea|select)\b[^>]*>", text):
        name = re.search(r'id="[^"]+"', field)
        assert field in named or (name and name[0] in named), field


def test_markdown_becomes_html(client: TestClient) -> None:
    text = "# Title\n\nSome *words* and `code`.\n\n```python\nprint(1 < 2)\n```\n\n|a|b|\n|-|-:|\n|1|2|\n\n"
    text += "~~no~~\n\n3. three\n"
    answer = client.post("/page/markdown", json={"text": text})
    assert answer.status_code == 200
    assert answer.headers["cache-control"] == "no-store"
    shown = Elements(answer.json()["html"])
    assert {"h1", "em", "code", "pre", "table", "td", "s", "ol"} <= shown.names
    assert ("code", {"class": "language-python"}) in shown.found
    assert ("td", {"align": "right"}) in shown.found
    assert ("ol", {"start": "3"}) in shown.found
    assert "print(1 < 2)" in shown.text


def test_links_open_elsewhere_and_tell_nothing() -> None:
    ((_, attributes),) = [found for found in Elements(render("[a](https://x.example/)")).found if found[0] == "a"]
    assert attributes["href"] == "https://x.example/"
    assert attributes["target"] == "_blank"
    assert set(str(attributes["rel"]).split()) == {"noopener", "noreferrer"}


HOSTILE = [
    "<script>alert(1)</script>",
    "<scr<script>ipt>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "![x](https://evil.example/pixel.png)",
    "[![x](https://evil.example/pixel.png)](javascript:alert(1))",
    '![x"onerror="alert(1)](x "onerror=alert(1)")',
    "[a](javascript:alert(1))",
    "[a](JaVaScRiPt:alert(1))",
    "[a](java&#x09;script:alert(1))",
    "[a](&#106;avascript:alert(1))",
    "[a](vbscript:x)",
    "[a](data:text/html;base64,PHNjcmlwdD4=)",
    "![a](data:image/svg+xml;base64,PHN2Zz4=)",
    "<javascript:alert(1)>",
    "[a]: javascript:alert(1)\n\n[a]",
    "[a](//evil.example/x)",
    "[a](/v1/models)",
    "[a](file:///etc/passwd)",
    "<svg onload=alert(1)><script>alert(1)</script></svg>",
    "<svg><a xlink:href='javascript:alert(1)'><text>x</text></a></svg>",
    "<math><mi xlink:href='javascript:alert(1)'>x</mi></math>",
    "<style>body{background:url(https://evil.example)}</style>",
    "<p style='position:fixed'>x</p>",
    "<iframe srcdoc='<script>alert(1)</script>'></iframe>",
    "<object data=x></object><embed src=x>",
    "<form action=https://evil.example><input name=key><button>go</button></form>",
    "<base href=https://evil.example><meta http-equiv=refresh content='0;url=https://evil.example'>",
    "<details open ontoggle=alert(1)>",
    "<!--><script>alert(1)</script-->",
    "<noscript><p title='</noscript><img src=x onerror=alert(1)>'>",
    "<math><mtext><table><mglyph><style><!--</style><img title='--&gt;&lt;img src=1 onerror=alert(1)&gt;'>",
    "```html\n</code></pre><script>alert(1)</script>\n```",
    '```"><script>alert(1)</script>\nx\n```',
    "```x onclick=alert(1)\nx\n```",
    "`<script>alert(1)</script>`",
    "> - <script>alert(1)</script>\n>   - <img src=x onerror=alert(1)>",
    "|<script>|\n|-|\n|<img src=x onerror=alert(1)>|",
    '[x](https://a.example "onmouseover=alert(1)")',
    "\x00<script>alert(1)</script>",
]
KEPT = "a blockquote br code em h1 h2 h3 h4 h5 h6 hr li ol p pre s strong table tbody td th thead tr ul"


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_text_stays_inert(text: str) -> None:
    shown = Elements(render(text))
    assert shown.names <= set(KEPT.split())
    for element, attributes in shown.found:
        assert set(attributes) <= {"href", "title", "rel", "target", "class", "align", "start"}
        assert re.match(r"(https?|mailto):", attributes.get("href") or "https:")
        assert element != "code" or re.fullmatch(r"language-[\w+#.-]+", attributes.get("class") or "language-x")


def test_the_second_wall_holds_without_the_first() -> None:
    """Whatever the Markdown parser may let through one day."""
    for text in HOSTILE:
        shown = Elements(sanitised(text))
        assert shown.names <= set(KEPT.split())
        assert not any(name.startswith("on") or name == "style" for _, attributes in shown.found for name in attributes)


def test_html_in_an_answer_can_be_read() -> None:
    assert "<b>bold</b>" in html.unescape(render("Write <b>bold</b> for bold."))


def test_images_become_links_with_their_description() -> None:
    shown = Elements(render('![A <b>"cat"</b>](https://x.example/cat.png) ![](https://x.example/b.png)'))
    assert [attributes["href"] for name, attributes in shown.found if name == "a"] == [
        "https://x.example/cat.png",
        "https://x.example/b.png",
    ]
    assert 'A <b>"cat"</b>' in shown.text
    assert "https://x.example/b.png" in shown.text


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b'"text"',
        b"null",
        b"{}",
        b'{"text": 1}',
        b'{"text": null}',
        b'{"text": ["x"]}',
        b"\xff\xfe\x00",
        b'{"text": "\xff"}',
        b"[" * 100_000,
    ],
)
def test_a_body_that_is_no_text_is_refused_in_words(client: TestClient, body: bytes) -> None:
    answer = client.post("/page/markdown", content=body)
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert error["type"] == "invalid_request_error"
    assert '{"text": "..."}' in error["message"]
    assert set(error) == {"message", "type", "param", "code"}


def test_a_text_of_the_largest_size_is_shown_and_a_larger_one_refused(client: TestClient) -> None:
    frame = len(json.dumps({"text": ""}))
    largest = {"text": "x" * (MARKDOWN_BYTES - frame)}
    assert client.post("/page/markdown", content=json.dumps(largest)).status_code == 200
    largest["text"] += "x"
    refused = client.post("/page/markdown", content=json.dumps(largest))
    assert refused.status_code == 413
    assert str(MARKDOWN_BYTES) in refused.json()["error"]["message"]


def test_halves_of_characters_do_no_harm(client: TestClient) -> None:
    answer = client.post("/page/markdown", content=b'{"text": "a \\ud83d b \\ud83d\\ude00"}')
    assert answer.json() == {"html": "<p>a ? b \U0001f600</p>\n"}


def test_only_posts_are_rendered(client: TestClient) -> None:
    assert client.get("/page/markdown").status_code == 405
