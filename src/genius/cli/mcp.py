"""`genius mcp`: an index for assistants that speak the Model Context Protocol."""

from __future__ import annotations

from genius.cli.output import DEFAULT_INDEX, Device, IndexFolder
from genius.errors import MissingExtra


def mcp(folder: IndexFolder = DEFAULT_INDEX, device: Device = "cpu") -> None:
    """Let an assistant search an index. It speaks the Model Context Protocol on stdin and stdout."""
    from genius.engine import Engine

    try:
        from genius.integrations.mcp_server import mcp_server
    except ModuleNotFoundError:
        raise MissingExtra('mcp is not installed: pip install "genius-search[mcp]"') from None
    with Engine.open(folder, device=device) as engine:
        mcp_server(engine).run("stdio")
