"""`PYTHONPATH=tests python -m tools.specs`."""

from .pages import main

raise SystemExit(main())
