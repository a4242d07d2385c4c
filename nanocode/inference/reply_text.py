"""The text of a reply while it comes. No JAX here: a server that only speaks for others uses it, too."""

from __future__ import annotations

import codecs

from nanocode.tokenizer import Tokenizer


class ReplyText:
    """The text of one reply, up to its first control token: bytes wait until their character is whole.

    What can no longer become a character is U+FFFD, as it is in the parsed message; so are bytes left at the end.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self.is_over = False

    def add(self, token: int) -> str:
        """What is certain by the next token; nothing once the text is over."""
        if self.is_over:
            return ""
        if token in self._tokenizer.special_ids:
            return self.end()
        return self._decoder.decode(self._tokenizer.decode_bytes([token]))

    def end(self) -> str:
        """No text comes from here on; what was held back."""
        self.is_over = True
        return self._decoder.decode(b"", final=True)
