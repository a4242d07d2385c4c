"""What went wrong with S3, whether it may pass, and what to do about it."""

from __future__ import annotations

from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    EndpointConnectionError,
    NoCredentialsError,
    ParamValidationError,
    PartialCredentialsError,
    ProfileNotFound,
    SSLError,
    TokenRetrievalError,
    UnauthorizedSSOTokenError,
)
from urllib3.exceptions import HTTPError

S3_ERRORS = (BotoCoreError, ClientError, HTTPError, ConnectionError, TimeoutError)

_MAY_PASS_STATUS = frozenset({408, 425, 429, 500, 502, 503, 504})
_TORN_ON_THE_WAY = {"BadDigest", "XAmzContentSHA256Mismatch", "MalformedXML", "IncompleteBody"}
_RACE_UNDER_WAY = {"ConditionalRequestConflict", "OperationAborted"}
_MAY_PASS_CODE = frozenset({"RequestTimeout", "SlowDown", "InternalError", *_TORN_ON_THE_WAY, *_RACE_UNDER_WAY})
_CREDENTIALS = (NoCredentialsError, PartialCredentialsError, TokenRetrievalError, UnauthorizedSSOTokenError)
_FINAL = (*_CREDENTIALS, ParamValidationError, ProfileNotFound)

_KEYS = "check AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
_RIGHTS = "allow s3:GetObject, s3:PutObject, s3:DeleteObject and s3:ListBucket to these credentials, or use others"
_CURES = {
    "NoSuchBucket": "create the bucket, or correct its name in the store's URL",
    "InvalidAccessKeyId": _KEYS,
    "SignatureDoesNotMatch": _KEYS,
    "AuthorizationHeaderMalformed": "set AWS_DEFAULT_REGION to the bucket's region",
    "PermanentRedirect": "set AWS_DEFAULT_REGION to the bucket's region",
    "ExpiredToken": "the session is over: get new credentials",
    "InvalidToken": "get new credentials, and unset AWS_SESSION_TOKEN where none is needed",
    "RequestTimeTooSkewed": "this machine's clock is wrong: set it, and let NTP keep it right",
    "AccessDenied": _RIGHTS,
    "403": f"{_KEYS}; {_RIGHTS}",
    "InvalidBucketName": "bucket names have 3 to 63 lower-case letters, digits, dots and hyphens",
    "QuotaExceeded": "free some space, or ask for more",
    "XMinioStorageFull": "free some space on the server",
}


class TornAnswer(HTTPError):
    """Fewer bytes came than the object has."""


def code_of(error: Exception) -> str:
    """S3's name for the error, such as NoSuchKey; the HTTP status for an answer without a body; else empty."""
    return str(error.response.get("Error", {}).get("Code", "")) if isinstance(error, ClientError) else ""


def status_of(error: Exception) -> int:
    """The HTTP status of the answer; 0 when there was none."""
    if not isinstance(error, ClientError):
        return 0
    return int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))


def may_pass(error: Exception) -> bool:
    """Whether another attempt may go better: overload, cut connections, time-outs, answers that make no sense."""
    if isinstance(error, ClientError):
        return status_of(error) in _MAY_PASS_STATUS or code_of(error) in _MAY_PASS_CODE
    return isinstance(error, S3_ERRORS) and not isinstance(error, _FINAL)


def reason(error: Exception, endpoint: str) -> str:
    """The error in one line, with the cure."""
    if isinstance(error, _CREDENTIALS):
        return f"{_line(error)}: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE"
    if isinstance(error, EndpointConnectionError):
        return f"nothing answers at {endpoint}: start the server, or correct AWS_ENDPOINT_URL"
    if isinstance(error, SSLError):
        return f"{_line(error)}: check http or https in AWS_ENDPOINT_URL, and AWS_CA_BUNDLE"
    if isinstance(error, ClientError):
        details = error.response.get("Error", {})
        said = " ".join(str(details.get("Message") or "").split()).rstrip(".") or f"status {status_of(error)}"
        cure = _CURES.get(code_of(error), "try again later" if may_pass(error) else "")
        return f"{code_of(error)} ({said}){': ' + cure if cure else ''}"
    return f"{_line(error)}: try again later" if may_pass(error) else _line(error)


def _line(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__
