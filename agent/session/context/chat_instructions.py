"""What a model is told before the conversation: instructions, and tools that it may call."""

from agent.errors import StageError
from agent.session.ports.stage_ports import ChatPort


class ModelSetting:
    """As it is wanted, and as the model was told last. Belongs to one session."""

    def __init__(self, chat: ChatPort, instructions: str) -> None:
        """`chat` was opened with these instructions, and without tools."""
        self.instructions = self._told_instructions = instructions
        self.tools: tuple[str, ...] = ()
        """As `Tools.definitions`."""
        self._told_tools: tuple[str, ...] = ()
        self._chat = chat

    @property
    def is_told(self) -> bool:
        """Whether the model knows all of it, and nothing else."""
        told = (self._told_instructions, self._told_tools)
        return (self.instructions, self.tools) == told

    async def settle(self, instructions: str | None, tools: tuple[str, ...] | None) -> None:
        """Tell the model what is wanted, or these in its place. Raises StageError; what the model
        refused of what is wanted is not wanted any more."""
        await self._instruct(self.instructions if instructions is None else instructions)
        await self._equip(self.tools if tools is None else tools)

    async def _instruct(self, wanted: str) -> None:
        if wanted == self._told_instructions:
            return
        try:
            await self._chat.set_system(wanted)
        except StageError as error:
            if error.refused and wanted == self.instructions:
                self.instructions = self._told_instructions
            raise
        self._told_instructions = wanted

    async def _equip(self, wanted: tuple[str, ...]) -> None:
        if wanted == self._told_tools:
            return
        try:
            await self._chat.set_tools(wanted)
        except StageError as error:
            if error.refused and wanted == self.tools:
                self.tools = self._told_tools
            raise
        self._told_tools = wanted
