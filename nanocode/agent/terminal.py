"""The agent on a terminal: reads what a person types, runs turns and commands, and survives Ctrl-C."""

from __future__ import annotations

import re
from collections.abc import Callable, Generator
from dataclasses import dataclass

from nanocode.agent.terminal_commands import Dialogue, run_command

_COMMAND = re.compile(r"/[a-z]+(?:\s|$)")


@dataclass
class Terminal:
    """An interactive session. ``read`` gives what was typed; EOFError ends it, or two KeyboardInterrupts in a row."""

    dialogue: Dialogue
    read: Callable[[], str]

    def run(self) -> None:
        """Until /quit, the end of input, or Ctrl-C twice."""
        interrupted = False
        while not self.dialogue.leaving:
            try:
                text = self.read().strip()
            except EOFError:
                return
            except KeyboardInterrupt:
                if interrupted:
                    return
                interrupted = True
                self.dialogue.screen.line("Ctrl-C again leaves", "dim")
                continue
            interrupted = False
            try:
                self._obey(text)
            except KeyboardInterrupt:  # in a command, or a second one while the first was being seen to
                self.dialogue.screen.view.quiet()

    def _obey(self, text: str) -> None:
        if _COMMAND.match(text):
            run_command(self.dialogue, text)
        elif text:
            self._answer(text)

    def _answer(self, text: str) -> None:
        screen, asker = self.dialogue.screen, self.dialogue.asker
        asker.stopped = False
        events = self.dialogue.session.send(text)
        try:
            screen.begin()
            for event in events:
                screen.draw(event)
                if asker.stopped:
                    raise KeyboardInterrupt
        except KeyboardInterrupt:
            screen.view.quiet()
            screen.line("stopped; the model forgets this turn, its edits stay (/undo takes them back)", "yellow")
        except RuntimeError as error:  # no sandbox, log or endpoint any more: the next turn may do better
            screen.view.quiet()
            screen.line(f"error: {error}", "red")
        finally:
            screen.view.quiet()
            if isinstance(events, Generator):
                events.close()
