"""A client of a prompt server: the calls, the event stream, and runs that can be awaited.

    async with Client("http://127.0.0.1:4343") as client:
        workspace = await client.open_workspace(os.getcwd())
        session = await client.create_session(workspace.id, "a talk")
        async with RunStream(client, workspace.id, session.id, "hello") as run:
            print((await run.end()).text)
"""

from cancelmark.model.wire import RunComplete

from ..wire import (
    Agent,
    AgentEvent,
    Ask,
    AskAnswered,
    Attachment,
    Called,
    Prompt,
    Session,
    TakenOver,
    Version,
    Workspace,
)
from .calls import Client
from .errors import BadAnswer, ClientError, EndUnknown, Refusal, Unreachable
from .results import Message, Notice, read_ended
from .run import RunStream
from .stream import Events, Patience

__all__ = ["Agent", "AgentEvent", "Ask", "AskAnswered", "Attachment", "BadAnswer", "Called", "Client", "ClientError",
           "EndUnknown", "Events", "Message", "Notice", "Patience", "Prompt", "Refusal", "RunComplete",
           "RunStream", "Session", "TakenOver", "Unreachable", "Version", "Workspace", "read_ended"]
