"""One Ray cluster for all tests."""

import os
from collections.abc import Iterator
from typing import Final

import pytest
import ray
from ray import serve
from ray.cluster_utils import Cluster

from agent.server import ray_proxy
from tests.ray.cluster import NAME, RayCluster, free_port

PROXY_CALLBACK: Final = f"{ray_proxy.__name__}:{ray_proxy.middlewares.__name__}"


@pytest.fixture(scope="session")
def nodes() -> Iterator[RayCluster]:
    os.environ["RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH"] = PROXY_CALLBACK
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 2})
    try:
        for _ in range(2):
            cluster.add_node(num_cpus=2)
        ray.init(address=cluster.address, log_to_driver=False)
        port = free_port()
        serve.start(
            proxy_location="HeadOnly", http_options={"host": "127.0.0.1", "port": port}
        )  # the other nodes have this machine's address as well, where the port is taken
        yield RayCluster(port)
        serve.shutdown()
    finally:
        ray.shutdown()
        cluster.shutdown()


@pytest.fixture
def cluster(nodes: RayCluster) -> Iterator[RayCluster]:
    yield nodes
    serve.delete(NAME)
