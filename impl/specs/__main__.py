from .pages import main

raise SystemExit(main())
