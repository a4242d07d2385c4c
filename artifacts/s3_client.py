"""botocore's client for S3, set up for a store: without retries of its own, and with time-outs."""

from __future__ import annotations

import functools
import os
from typing import Any

import botocore.session
from botocore.config import Config
from botocore.exceptions import BotoCoreError

from artifacts.store import WrongStore

CONNECTIONS = 32


def s3_client(timeout: tuple[float, float]) -> Any:
    """A client for what the AWS_ variables and files say; `timeout` is seconds to connect, and without a byte.

    Clients are kept, because making one takes a third of a second. Raises WrongStore.
    """
    return _client(timeout, tuple(sorted((name, value) for name, value in os.environ.items() if name[:4] == "AWS_")))


@functools.lru_cache(maxsize=8)
def _client(timeout: tuple[float, float], environment: tuple[tuple[str, str], ...]) -> Any:
    config = Config(
        retries={"total_max_attempts": 1, "mode": "standard"},
        connect_timeout=timeout[0],
        read_timeout=timeout[1],
        max_pool_connections=CONNECTIONS,
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
    )
    try:
        session = botocore.session.get_session()
        region = session.get_config_variable("region")
        if _names_a_server(dict(environment), session):
            # Servers of one's own seldom have a host name for each bucket, and do not care about regions.
            config = config.merge(Config(s3={"addressing_style": "path"}))
            region = region or "us-east-1"
        return session.create_client("s3", region_name=region, config=config)
    except (BotoCoreError, ValueError) as error:
        raise WrongStore(f"no client for S3: {error}: check the AWS_ variables") from error


def _names_a_server(environment: dict[str, str], session: Any) -> bool:
    """Whether an endpoint is set, by a variable or in the profile."""
    variables = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")
    return any(environment.get(name) for name in variables) or "endpoint_url" in session.get_scoped_config()
