"""A language model that plays the scenes that a test writes for it."""

from collections.abc import Iterable

from cancelmark.impl.models.scripted import Beat, Gate, Request, ScriptedModel, Wait, say


class Scenes:
    """The scenes for each prompt's text; other prompts are echoed."""

    def __init__(self) -> None:
        self.scenes: dict[str, list[tuple[Beat, ...]]] = {}
        self.requests: list[Request] = []
        self.model = ScriptedModel(self._scene)

    def _scene(self, request: Request) -> Iterable[Beat] | None:
        self.requests.append(request)
        scenes = self.scenes.get(request.prompt)
        if not scenes:
            return None
        return scenes.pop(0) if len(scenes) > 1 else scenes[0]

    def plays(self, text: str, *scenes: Iterable[Beat]) -> None:
        """What the model plays for this prompt, a scene at each step; the last one for ever."""
        self.scenes[text] = [tuple(scene) for scene in scenes]

    def holds(self, text: str) -> Gate:
        """The turn of this prompt says half of its text and waits at the gate that is returned."""
        self.plays(text, (*say("half "), Wait(text), *say("done")))
        return self.model.gate(text)
