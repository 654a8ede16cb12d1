"""How much the random tests try: enough for every change, or (`make test-deep`) as much as a night allows."""

import os

DEEP = os.environ.get("CANCELMARK_DEEP") == "1"


def effort(examples: int) -> int:
    return examples * 20 if DEEP else examples
