"""Errors as a client sees them: a status and the field's JSON shape."""

from __future__ import annotations

from typing import Any

from tinylm.errors import RequestError

TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    405: "not_found_error",
    408: "timeout_error",
    413: "invalid_request_error",
    429: "rate_limit_error",
    500: "server_error",
    503: "unavailable_error",
    504: "timeout_error",
}
"""The `type` of an error, by its status."""


class Refusal(RequestError):
    """A request that is not, or not wholly, answered. `extra`: more keys of the error object."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        type: str = "",
        extra: dict[str, Any] | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.type = type or TYPES[status]
        self.extra = extra or {}
        self.headers = headers or {}

    def body(self) -> dict[str, Any]:
        """`{"error": {"code", "message", "type"}}`."""
        error = {"code": self.status, "message": self.message, "type": self.type, **self.extra}
        return {"error": error}


def too_long(prompt_tokens: int, window: int, where: str = "prompt") -> Refusal:
    """The refusal of a prompt that leaves no room for a token."""
    message = (
        f"{where}: {prompt_tokens} tokens exceeds the available context size ({window} tokens), "
        f"expected at most {window - 1}; shorten the prompt (the boundary before a text counts)"
    )
    extra = {"n_prompt_tokens": prompt_tokens, "n_ctx": window}
    return Refusal(400, message, type="exceed_context_size_error", extra=extra)
