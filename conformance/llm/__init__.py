"""The APIs of the fake language model: OpenAI chat completions, OpenAI Responses and Anthropic Messages.

    asked       requests and answers, independent of the API
    chat        POST /v1/chat/completions
    responses   POST /v1/responses
    anthropic   POST /v1/messages
"""

from . import anthropic, chat, responses
from .asked import WORD, ModelAnswer, ModelRequest, Response, ToolCall, Wire, json_response
from .chat import list_models

WIRES: dict[str, Wire] = {
    "/v1/chat/completions": chat.ChatCompletions(),
    "/v1/responses": responses.Responses(),
    "/v1/messages": anthropic.Messages(),
}
"""By the path of a request."""

__all__ = [
    "WIRES", "WORD", "ModelAnswer", "ModelRequest", "Response", "ToolCall", "Wire", "json_response", "list_models",
]
