"""`python -m cancelmark.bench`."""

from cancelmark.impl.cli.main import run_command

from .frame import parser

raise SystemExit(run_command(parser().parse_args()))
