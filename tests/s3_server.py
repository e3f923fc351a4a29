"""A real S3 server on this machine."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import NamedTuple

import pytest

REGION = "eu-west-1"


class Bucket(NamedTuple):
    url: str
    environment: dict[str, str]  # with which it is found


@contextmanager
def bucket_with(objects: Mapping[str, bytes]) -> Iterator[Bucket]:
    """Serve a bucket with these objects; this process finds it, too, while the block runs."""
    server_module, boto3 = pytest.importorskip("moto.server"), pytest.importorskip("boto3")
    pytest.importorskip("s3fs")
    server = server_module.ThreadedMotoServer(port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    keys = dict.fromkeys(("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"), "any")
    environment = keys | {"AWS_DEFAULT_REGION": REGION, "AWS_ENDPOINT_URL": f"http://{host}:{port}"}
    with pytest.MonkeyPatch.context() as patch:
        for variable, value in environment.items():
            patch.setenv(variable, value)
        client, name = boto3.client("s3"), f"text-{port}"
        where = {"LocationConstraint": REGION}
        client.create_bucket(Bucket=name, CreateBucketConfiguration=where)
        for key, body in objects.items():
            client.put_object(Bucket=name, Key=key, Body=body)
        yield Bucket(f"s3://{name}", environment)
    server.stop()
