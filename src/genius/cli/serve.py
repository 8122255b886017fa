"""`genius serve`: an index over HTTP, with a page for people."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from genius.cli.output import DEFAULT_INDEX, Device, IndexFolder, say
from genius.errors import BadInput


def serve(
    folder: IndexFolder = DEFAULT_INDEX,
    host: Annotated[
        str, typer.Option(help="Address to listen on; all but loopback need a key.")
    ] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port to listen on; 0 takes a free one.")
    ] = 8000,
    key_file: Annotated[
        Path | None, typer.Option(help="File with the key that requests must send (or set GENIUS_KEY).")
    ] = None,
    allow_origin: Annotated[
        list[str] | None,
        typer.Option(
            help="A site whose pages may use the API, such as https://example.org. May be repeated."
        ),
    ] = None,
    places: Annotated[
        bool, typer.Option("--places", help="Also tell other machines where photos were taken.")
    ] = False,
    max_beam: Annotated[int, typer.Option(min=1, help="Largest beam a search may ask for.")] = 500,
    max_hits: Annotated[int, typer.Option(min=1, help="Most hits a search may ask for.")] = 200,
    max_megabytes: Annotated[int, typer.Option(min=1, help="Largest request.")] = 32,
    max_seconds: Annotated[float, typer.Option(min=0.1, help="Longest a search may take.")] = 10.0,
    device: Device = "cpu",
    cluster: Annotated[
        str | None,
        typer.Option(metavar="ADDRESS", help="Serve on Ray: `local`, `auto` or host:port of a cluster."),
    ] = None,
    replicas: Annotated[int, typer.Option(min=1, help="Replicas on a cluster.")] = 2,
    vector_shards: Annotated[
        int,
        typer.Option(min=0, help="Processes that share the vectors, on a cluster; 0: all in every replica."),
    ] = 0,
    stop: Annotated[bool, typer.Option("--stop", help="Stop serving on the cluster.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Log only warnings and errors.")] = False,
) -> None:
    """Serve an index over HTTP: an API, metrics and a search page."""
    import logging
    import os

    from genius.engine import Engine
    from genius.serve import run
    from genius.serve.access import check_key
    from genius.serve.limits import MB, Limits
    from genius.serve.log import log_to

    key = _key(key_file, os.environ.get("GENIUS_KEY"))
    check_key(host, key)
    limits = Limits(beam=max_beam, hits=max_hits, body=max_megabytes * MB, search_s=max_seconds)
    if cluster is not None:
        values = {"replicas": replicas, "shards": vector_shards, "device": device, "host": host, "key": key}
        values |= {"folder": str(folder), "origins": tuple(allow_origin or ()), "limits": limits}
        values |= {"places": places}
        _serve_on_cluster(cluster, values, port, stop)
        return
    with Engine.open(folder, device=device) as engine:
        log_to(level=logging.WARNING if quiet else logging.INFO)
        listening = run.listen(host, port)
        say(f"genius serves {folder} at {run.address_of(listening)} (Ctrl-C stops it)")
        run.serve(engine, listening, key=key, limits=limits, origins=allow_origin or (), places=places)


def _serve_on_cluster(address: str, values: dict[str, Any], port: int, stop: bool) -> None:
    """A local cluster serves until it is stopped, and ends; one that was there before goes on serving."""
    import signal

    from genius.cluster.session import LOCAL, connected, ray_module

    ray_module("ray.serve")  # or a line that says what to install
    from genius.cluster.serving import Deployment, deployed, withdraw

    if stop:
        with connected(address):
            withdraw()
        return
    with deployed(Deployment(**values), address, port) as url:
        if address != LOCAL:
            say(f"the cluster serves {values['folder']} at {url}; --stop ends it")
            return
        say(f"genius serves {values['folder']} at {url} with {values['replicas']} replicas (Ctrl-C stops it)")
        try:
            signal.pause()  # SIGTERM and Ctrl-C end it
        finally:
            withdraw()


def _key(file: Path | None, fallback: str | None) -> str | None:
    if file is None:
        return fallback or None
    try:
        return file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"cannot read the key from {file}: {getattr(error, 'strerror', error)}") from None
