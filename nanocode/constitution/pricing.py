"""What endpoints take for tokens, as far as the config knows."""

from __future__ import annotations

from dataclasses import dataclass

from nanocode.config import ConstitutionConfig, EndpointConfig
from nanocode.constitution.prompts import PARTS


@dataclass(frozen=True)
class Price:
    """US dollars for a million tokens."""

    input: float
    output: float

    def of(self, tokens_in: int, tokens_out: int) -> float:
        """US dollars for that many tokens."""
        return (tokens_in * self.input + tokens_out * self.output) / 1e6


def price_of(endpoint: EndpointConfig) -> Price | None:
    """What an endpoint takes; the embedded teacher takes nothing. None: unknown."""
    if endpoint.base_url is None:
        return Price(0.0, 0.0)
    given, said = endpoint.usd_per_million_input_tokens, endpoint.usd_per_million_output_tokens
    return None if given is None or said is None else Price(given, said)


def prices_of(config: ConstitutionConfig) -> dict[str, Price | None]:
    """Prices by part."""
    return {part: price_of(getattr(config, part)) for part in PARTS}
