"""An S3 of this machine that other processes reach too."""

import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

KEYS = {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b", "AWS_DEFAULT_REGION": "us-east-1"}


@contextmanager
def s3_server() -> Iterator[dict[str, str]]:
    """Give the variables by which a process reaches an S3 that has one bucket, `shop`."""
    import boto3
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer("127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        variables = {**KEYS, "AWS_ENDPOINT_URL": f"http://127.0.0.1:{server.get_host_and_port()[1]}"}
        urllib.request.urlopen(f"{variables['AWS_ENDPOINT_URL']}/moto-api/reset", data=b"").close()  # Of tests before.
        with patch.dict("os.environ", variables):
            boto3.client("s3").create_bucket(Bucket="shop")
        yield variables
    finally:
        server.stop()
