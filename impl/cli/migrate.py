"""`cancelmark migrate`: a workspace from a file into a database, places and all."""

import argparse
import asyncio
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..files import UsageError
from .width import Help

if TYPE_CHECKING:
    from ..cluster.moving import MovedWorkspace

DESCRIPTION = """\
Move a workspace from a data directory into a PostgreSQL database, for several servers to share. Stop the server of the
directory first. The file is left as it is. Clients come back with the places that they have; prompts that were not done
go on as after a restart.
"""

EPILOG = """\
examples:
  cancelmark migrate ~/.local/share/cancelmark/workspaces/66438a27-….db postgresql://cancelmark@db.example/cancelmark
"""


def add_parser(commands: Any) -> None:
    parser = commands.add_parser("migrate", description=DESCRIPTION, epilog=EPILOG, formatter_class=Help)
    parser.add_argument("file", type=Path, metavar="FILE", help="workspaces/ID.db of a data directory")
    parser.add_argument("database", metavar="URL", help="postgresql://USER@HOST/NAME")
    parser.add_argument("--json", action="store_true", help="say what was moved as JSON")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    from ..cluster.moving import move
    from ..store import StoreError

    if not arguments.file.is_file():
        raise UsageError(f"{arguments.file}: there is no such file; give workspaces/ID.db of a data directory")
    if not arguments.database.startswith(("postgresql://", "postgres://")):
        raise UsageError(f"{arguments.database!r:.40}: give postgresql://USER@HOST/NAME")
    try:
        moved = asyncio.run(move(arguments.file, arguments.database))
    except StoreError as error:
        raise UsageError(str(error)) from error
    print(json.dumps(moved._asdict()) if arguments.json else tell(moved))
    return 0


def tell(moved: "MovedWorkspace") -> str:
    told = (f"moved workspace {moved.workspace}: {moved.sessions} sessions, {moved.prompts} prompts, {moved.messages} "
            f"messages, {moved.events} events")
    if moved.replaced:
        told += f"\n{moved.replaced} texts had a NUL, which the database cannot keep: it is U+FFFD there"
    return told
