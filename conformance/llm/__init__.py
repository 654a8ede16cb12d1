"""The wires of language models that the fake one speaks: OpenAI chat completions, OpenAI Responses, Anthropic Messages.

    asked       what a request asks for, whatever its wire; and an answer to write as each wire does
    chat        POST /v1/chat/completions
    responses   POST /v1/responses
    anthropic   POST /v1/messages
"""

from . import anthropic, chat, responses
from .asked import WORD, Asked, Call, Response, Said, Wire, json_response
from .chat import list_models

WIRES: dict[str, Wire] = {
    "/v1/chat/completions": chat.ChatCompletions(),
    "/v1/responses": responses.Responses(),
    "/v1/messages": anthropic.Messages(),
}
"""By the path of a request for an answer."""

__all__ = ["WIRES", "WORD", "Asked", "Call", "Response", "Said", "Wire", "json_response", "list_models"]
