"""`cancelmark migrate`: copies a workspace from a file into a database, with its event offsets."""

import argparse
import asyncio
import json
from pathlib import Path
from typing import TYPE_CHECKING

from ..files import UsageError

if TYPE_CHECKING:
    from ..cluster.moving import MovedWorkspace

DESCRIPTION = """\
Copy a workspace from a data directory into a PostgreSQL database that several servers can share. First stop the server
that uses the directory. The file is not changed. Clients resume from their last event offset; unfinished prompts
continue as after a restart.
"""

EPILOG = """\
examples:
  cancelmark migrate ~/.local/share/cancelmark/workspaces/66438a27-….db postgresql://cancelmark@db.example/cancelmark
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", type=Path, metavar="FILE", help="the workspace: workspaces/ID.db in a data directory")
    parser.add_argument("database", metavar="URL", help="the database: postgresql://USER@HOST/NAME")
    parser.add_argument("--json", action="store_true", help="report as JSON")


def run(arguments: argparse.Namespace) -> int:
    from ..cluster.moving import move
    from ..store import StoreError

    if not arguments.file.is_file():
        raise UsageError(f"{arguments.file}: no such file; give workspaces/ID.db of a data directory")
    if not arguments.database.startswith(("postgresql://", "postgres://")):
        raise UsageError(f"invalid database URL {arguments.database!r:.40}; expected postgresql://USER@HOST/NAME")
    try:
        moved = asyncio.run(move(arguments.file, arguments.database))
    except StoreError as error:
        raise UsageError(str(error)) from error
    print(json.dumps(moved._asdict()) if arguments.json else tell(moved))
    return 0


def tell(moved: "MovedWorkspace") -> str:
    told = (f"copied workspace {moved.workspace}: {moved.sessions} sessions, {moved.prompts} prompts, "
            f"{moved.messages} messages, {moved.events} events")
    if moved.replaced:
        told += (f"\nreplaced NUL by U+FFFD in {moved.replaced} texts: PostgreSQL cannot store NUL")
    return told
