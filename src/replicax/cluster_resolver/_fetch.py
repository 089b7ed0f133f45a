"""Asking a service of the platform, such as the API of Kubernetes, with a short time-out.

The resolvers take a `Fetch` as an argument, so that a test or a program can answer instead.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias, final

from replicax._core.errors import ClusterError

if TYPE_CHECKING:
    from pathlib import Path

_TIMEOUT = 5.0  # seconds
_SHOWN = 200  # characters of an answer that is not understood


@final
@dataclass(frozen=True)
class Request:
    """One question over HTTP.

    Args:
        url: The address.
        headers: Other headers that the service wants, such as a token.
        body: The content, sent as JSON by POST.
        certificates: The file with the authorities to trust, if not those of the system.

    Example:
        >>> from replicax.cluster_resolver import Request
        >>> Request("http://metadata.google.internal", {"Metadata-Flavor": "Google"}).body
    """

    url: str
    headers: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    body: Mapping[str, str] | None = None
    certificates: Path | None = None


Fetch: TypeAlias = Callable[[Request], Any]


def fetch_json(request: Request, timeout: float = _TIMEOUT) -> Any:
    """The service's answer, decoded if it is JSON, else as text.

    Args:
        request: The question.
        timeout: Seconds to wait for the connection, and for each part of the answer.

    Raises:
        ClusterError: If there is no answer in time, or a refusal.
    """
    # Not at the top: they import TLS, which takes longer than all resolvers together.
    import http.client
    import ssl
    import urllib.error
    import urllib.request

    data = None if request.body is None else json.dumps(request.body).encode()
    headers = {"Accept": "application/json", "Content-Type": "application/json", **request.headers}
    question = urllib.request.Request(request.url, data, headers)
    try:
        trusted = request.certificates
        context = ssl.create_default_context(cafile=str(trusted)) if trusted else None
        with urllib.request.urlopen(question, timeout=timeout, context=context) as answer:
            text = answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            reason = error.read(_SHOWN).decode(errors="replace")
        raise ClusterError(
            f"No answer from {request.url}: HTTP {error.code} {error.reason}: {reason} Give the "
            "process the right to ask (401, 403), or correct the name (404)."
        ) from None
    except (OSError, http.client.HTTPException) as error:
        raise ClusterError(
            f"No answer from {request.url} within {timeout} s: {error}. Check that the program "
            "runs inside that platform, or describe the cluster in TF_CONFIG."
        ) from None
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return text
