"""An assistant searches an index through MCP's own client."""

from __future__ import annotations

import asyncio
import base64
import io
import subprocess
import sys
import warnings

import pytest
from PIL import Image

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of the package's own dependencies, when first imported
    pytest.importorskip("mcp", reason="mcp is not installed: it is in the extra mcp")
    from mcp import Client

    from genius.integrations.mcp_server import mcp_server


def call(engine, name: str, **arguments):
    async def ask():
        async with Client(mcp_server(engine)) as client:
            return await client.call_tool(name, arguments)

    return asyncio.run(ask())


def test_an_assistant_finds_items(engine):
    hits = call(engine, "search", text="red", want="text", k=2, where="even").structured_content["result"]
    assert hits[0]["id"] == "t-red" and hits[0]["text"] == "something red" and len(hits) == 2
    like = call(engine, "search", like="red", want="image", k=20).structured_content["result"]
    assert len(like) == 9 and "red" not in {hit["id"] for hit in like} and like[0]["picture"]
    assert call(engine, "item", id="t-red").structured_content["meta"] == {"number": 0, "even": True}
    assert call(engine, "stats").structured_content["items"] == 20


def test_an_assistant_sees_pictures(engine):
    (content,) = call(engine, "picture", id="red").content
    image = Image.open(io.BytesIO(base64.b64decode(content.data))).convert("RGB")
    assert content.mime_type == "image/jpeg" and image.getpixel((3, 3))[0] > 200


def test_what_is_not_there_is_said(engine):
    for name, arguments in (
        ("item", {"id": "x"}),
        ("picture", {"id": "t-red"}),
        ("search", {"want": "text"}),
    ):
        answer = call(engine, name, **arguments)
        assert answer.is_error and answer.content[0].text


def test_importing_genius_imports_no_integration():
    code = (
        "import sys, genius, genius.cli; "
        "print([m for m in ('mcp', 'langchain_core', 'llama_index', 'haystack') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
