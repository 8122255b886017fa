"""An index on Ray Serve: replicas that search, shards of the vectors, and the front with the HTTP routes.

Deployed again under the same name, Ray Serve replaces one replica after the other and loses no request.
"""

from __future__ import annotations

import os
import socket
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from genius.cluster.session import connected, ray_module
from genius.errors import BadInput, ClusterError, IndexNotFound
from genius.serve.access import is_loopback
from genius.serve.limits import Limits
from genius.store.connection import INDEX_FILE as INDEX

NAME = "genius"
HEALTH_S = 5.0  # between two health checks


@dataclass(frozen=True, slots=True)
class Deployment:
    """What is served, by how many."""

    folder: str
    replicas: int = 2
    shards: int = 0  # of the vectors; 0: every replica reads the file itself
    device: str = "cpu"
    cpus: float = 0.75  # of a replica, so that as many fit as there are processors
    writes: bool = True  # whether items can be added and removed over HTTP
    host: str = "127.0.0.1"
    key: str | None = None
    origins: tuple[str, ...] = ()
    places: bool = False  # whether it tells where photos were taken
    limits: Limits = field(default_factory=Limits)


@contextmanager
def deployed(deployment: Deployment, address: str, port: int) -> Iterator[str]:
    """The index served on a cluster; gives the URL. A local cluster ends with the context."""
    with connected(address, max(os.cpu_count() or 1, deployment.replicas)) as ray:
        machines = sum(bool(node["Alive"]) for node in ray.nodes())
        yield deploy(replace(deployment, writes=deployment.writes and machines == 1), port)


def deploy(deployment: Deployment, port: int) -> str:
    """Serve on the cluster that is connected, in the place of what was served before; the URL.

    Returns when all replicas answer.
    """
    if not (Path(deployment.folder) / INDEX).exists():
        raise IndexNotFound(
            f"no index in {deployment.folder}: make one with `genius index PATH --to {deployment.folder}`"
        )
    serve = ray_module("ray.serve")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        port = port or _free_port(deployment.host)
        try:
            serve.start(http_options={"host": deployment.host, "port": port, "location": "EveryNode"})
        except (ray_module().exceptions.RayError, TimeoutError) as error:
            raise ClusterError(f"Ray Serve does not start ({type(error).__name__}): run again") from error
        host, port = _listening(serve)  # another one may have started it, with options of its own
        _refuse_without_key(host, port, deployment.key)
        try:
            application = _application(serve, replace(deployment, host=host))
            serve.run(application, name=NAME, route_prefix="/")
        except RuntimeError as error:
            raise ClusterError(f"the index is not served: {error}; see Ray's logs, then run again") from None
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _listening(serve: Any) -> tuple[str, int]:
    """The address that Ray Serve listens on; an empty host if it is unknown."""
    try:
        options = serve.context._get_global_client().http_config
        return str(options.host or ""), int(options.port)
    except (AttributeError, TypeError, ValueError):  # Ray has no public way to ask
        return "", 0


def _refuse_without_key(host: str, port: int, key: str | None) -> None:
    if key is None and not is_loopback(host):
        where = f"{host}:{port}, which" if host else "an unknown address that perhaps"
        raise BadInput(
            f"Ray Serve runs on this cluster already, on {where} can be reached from other machines: "
            "set a key (environment variable GENIUS_KEY), or end it with `serve shutdown`"
        )


def withdraw() -> None:
    """Serve no more; requests under way may finish."""
    ray_module("ray.serve").delete(NAME)


def _application(serve: Any, deployment: Deployment) -> Any:
    """The deployments and how they hang together."""
    from genius.cluster.replica import Replica
    from genius.cluster.vectors import VectorShard

    health = {
        "health_check_period_s": HEALTH_S,
        "health_check_timeout_s": 30,
        "graceful_shutdown_timeout_s": deployment.limits.stop_s,
        "graceful_shutdown_wait_loop_s": 0.5,
    }
    folder = str(Path(deployment.folder).resolve())
    shards = [
        serve.deployment(
            VectorShard,
            name=f"vectors-{shard}",
            ray_actor_options={"num_cpus": 0},
            max_ongoing_requests=64,
            **health,
        ).bind(folder, shard, deployment.shards)
        for shard in range(deployment.shards)
    ]
    replicas = serve.deployment(
        Replica,
        name="replicas",
        num_replicas=deployment.replicas,
        ray_actor_options={
            "num_cpus": deployment.cpus,
            "num_gpus": 1 if deployment.device.startswith("cuda") else 0,
        },
        max_ongoing_requests=deployment.limits.waiting
        + deployment.limits.batch,  # what it cannot take it refuses itself
        **health,
    ).bind(folder, deployment.limits, deployment.device, deployment.writes, *shards)
    front = serve.deployment(
        _front(serve, deployment), name="front", ray_actor_options={"num_cpus": 0},
        max_ongoing_requests=deployment.limits.requests, **health,
    )  # fmt: skip
    return front.bind(replicas)


def _front(serve: Any, deployment: Deployment) -> Any:
    """The class that has the routes: the application of `genius serve`, with replicas for a backend."""
    key, origins, places, limits, loopback = (
        deployment.key,
        deployment.origins,
        deployment.places,
        deployment.limits,
        is_loopback(deployment.host),
    )

    class Front:
        def __init__(self, replicas: Any) -> None:
            self.replicas = replicas

        def __serve_build_asgi_app__(self) -> Any:
            from genius.cluster.replica import ReplicaBackend
            from genius.serve.app import app_for
            from genius.serve.metrics import Metrics

            backend = ReplicaBackend(self.replicas, limits, Metrics())
            return app_for(backend, key=key, loopback=loopback, origins=origins, places=places)

    return serve.ingress()(Front)


def _free_port(host: str) -> int:
    """A port that nobody listens on at the moment."""
    try:
        with socket.create_server((host, 0)) as free:
            return int(free.getsockname()[1])
    except OSError as error:
        raise BadInput(f"cannot listen on {host} ({error.strerror}): choose another --host") from None
