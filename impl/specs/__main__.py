"""`python -m cancelmark.impl.specs`."""

from .pages import main

raise SystemExit(main())
