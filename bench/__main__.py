"""`python -m cancelmark.bench`."""

import sys

from cancelmark.impl.cli.main import run_command

from . import frame
from .wire import peer

PARSERS = {"peer": peer.parser, "llm": peer.llm_parser}

word = sys.argv[1] if len(sys.argv) > 1 else ""
arguments = PARSERS[word]().parse_args(sys.argv[2:]) if word in PARSERS else frame.parser().parse_args()
raise SystemExit(run_command(arguments))
