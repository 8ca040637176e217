"""What goes wrong, as an HTTP status and a body in the words of the wire that was asked."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from starlette.responses import Response

OPENAI_ROUTES = ("/v1/decisions",)
_SHOWN = 20  # mistakes of a body that are named
_KINDS = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}


@dataclass(frozen=True)
class Failure:
    """``mistakes``: in the body, each as (place, sentence, kind); their failure is a 422. ``headers``: beside the body's own."""

    status: int
    message: str
    mistakes: Sequence[tuple[tuple[str | int, ...], str, str]] = ()
    headers: Mapping[str, str] = field(default_factory=dict)

    @property
    def kind(self) -> str:
        return _KINDS.get(self.status, "invalid_request_error" if self.status < 500 else "server_error")


def retry_after(seconds: float) -> dict[str, str]:
    """The headers that say when to come again, in the units that clients read."""
    return {"retry-after": str(max(1, math.ceil(seconds))), "retry-after-ms": str(math.ceil(1000 * seconds))}


def mistaken(sentence: str) -> Failure:
    """A body that says something impossible."""
    return Failure(422, sentence, [(("body",), sentence, "value_error")])


def invalid(errors: Sequence[Mapping[str, Any]]) -> Failure:
    """A body that isn't what the wire asks for, from Pydantic's errors. What the client wrote is not repeated."""
    mistakes = []
    for error in errors[:_SHOWN]:
        said = str(error["msg"]).removeprefix("Value error, ")
        if error["type"] == "json_invalid":
            said = f"the body can't be read as JSON: {error['ctx']['error']}"
        mistakes.append((tuple(error["loc"]), said, str(error["type"])))
    place, said, _ = mistakes[0]
    more = f" ({len(errors)} mistakes in all)" if len(errors) > 1 else ""
    return Failure(422, f"{'.'.join(map(str, place))}: {said}{more}", mistakes)


def response(path: str, failure: Failure) -> Response:
    """The failure for a route: OpenAI's ``{"error": …}``, or System One's ``{"detail": …}``, which the other routes use as well."""
    body: dict[str, Any]
    if path in OPENAI_ROUTES:
        place = ".".join(str(part) for part in failure.mistakes[0][0][1:]) if failure.mistakes else ""
        body = {"error": {"message": failure.message, "type": failure.kind, "param": place or None, "code": None}}
    elif failure.mistakes:
        body = {"detail": [{"loc": list(place), "msg": said, "type": kind} for place, said, kind in failure.mistakes]}
    else:
        body = {"detail": {"error_type": failure.kind, "message": failure.message}}
    return Response(json.dumps(body), failure.status, failure.headers, "application/json")  # ASCII: any string can be sent
