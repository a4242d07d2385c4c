"""What generation would ask of endpoints: requests, tokens and money, at best and at worst.

Requests follow from the loop (`nanocode.constitution.rollout`). Best: the draft takes one turn and is accepted as it
is. Worst: every turn and every revision is used, and each reply of critic and reviser needs its repair turn. An attempt
that fails is repeated, and may be billed; that is not in here.

Tokens are modelled. Of what we write ourselves the bytes are known, at `BYTES_PER_TOKEN`; a conversation takes nothing
at best and `model.context_tokens` at worst, and where the set is converted already, its mean length in both cases.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from nanocode.config import ConstitutionConfig, EndpointConfig, InstructionSource
from nanocode.constitution import prompts
from nanocode.constitution.pricing import price_of
from nanocode.constitution.probes import PROBES
from nanocode.constitution.prompts import RULES_MODEL, Part
from nanocode.constitution.soul import Soul

BYTES_PER_TOKEN = 4
_SHORTEST_REPLY = {"generator": "done", "critic": '{"score": 5, "violations": [], "critique": ""}', "reviser": ""}


@dataclass(frozen=True)
class Amounts:
    """`usd` is None where no price is known."""

    requests: int = 0
    tokens_in: int = 0
    tokens_out: int = 0
    usd: float | None = 0.0

    def __add__(self, other: Amounts) -> Amounts:
        usd = None if self.usd is None or other.usd is None else self.usd + other.usd
        return Amounts(
            self.requests + other.requests, self.tokens_in + other.tokens_in, self.tokens_out + other.tokens_out, usd
        )

    def times(self, count: int) -> Amounts:
        """The amounts of so many."""
        usd = None if self.usd is None and count else (self.usd or 0.0) * count
        return Amounts(self.requests * count, self.tokens_in * count, self.tokens_out * count, usd)


@dataclass(frozen=True)
class Converted:
    """A set that is converted already: how many conversations, and their tokens in all."""

    conversations: int
    tokens: int


@dataclass(frozen=True)
class AskingStage:
    """Requests of all shards of one kind of data. Without `tasks`, `least` and `most` nobody knows how many there are.

    `exact` is False where `tasks` is the most that it can be.
    """

    name: str
    tasks: int | None
    exact: bool
    least: Amounts | None
    most: Amounts | None


def plan_asking(
    config: ConstitutionConfig, context_tokens: int, soul: Soul, converted: Mapping[str, Converted] | None = None
) -> list[AskingStage]:
    """All stages that ask endpoints, in order. `converted`: what is known of instruction sets, by name."""
    asking = _Asking(config, context_tokens, soul)
    rollouts = (("sft", config.sft_tasks), ("preference", config.preference_tasks))
    stages = [asking.stage(f"rollouts {split}", tasks, True, None, drafted=True) for split, tasks in rollouts]
    for source in config.sources:
        if source.restyle:
            known = (converted or {}).get(source.name)
            mean = None if known is None else round(known.tokens / max(1, known.conversations))
            stages += [
                asking.stage(f"restyled {source.name} {split}", tasks, False, mean, drafted=False)
                for split, tasks in _halves(source, known)
            ]
    return stages


def _halves(source: InstructionSource, known: Converted | None) -> Iterator[tuple[str, int | None]]:
    """Conversations by split: about so many, for a hash says which of them go where."""
    rows = source.max_rows if known is None else known.conversations
    preferred = None if rows is None else round(rows * source.preference_share)
    yield "sft", None if rows is None or preferred is None else rows - preferred
    if source.preference_share > 0:
        yield "preference", preferred


class _Asking:
    """One conversation's requests, by what the config allows."""

    def __init__(self, config: ConstitutionConfig, context_tokens: int, soul: Soul) -> None:
        self._config, self._context_tokens, self._soul = config, context_tokens, soul

    def stage(self, name: str, tasks: int | None, exact: bool, mean_tokens: int | None, drafted: bool) -> AskingStage:
        if tasks is None:
            return AskingStage(name, None, exact, None, None)
        short, long = (0, self._context_tokens) if mean_tokens is None else (mean_tokens, mean_tokens)
        least, most = self._least(short, drafted).times(tasks), self._most(long, drafted).times(tasks)
        shards = self._config.rollout_shards if drafted else 1
        return AskingStage(
            name, tasks, exact, least + self._calibration(1, False), most + self._calibration(shards, True)
        )

    def _least(self, conversation_tokens: int, drafted: bool) -> Amounts:
        draft = self._request("generator", 0, False) if drafted else Amounts()
        return draft + self._request("critic", conversation_tokens, False)

    def _most(self, conversation_tokens: int, drafted: bool) -> Amounts:
        revisions = self._config.max_revisions
        found = self._request("generator", conversation_tokens, True).times(self._config.max_turns if drafted else 0)
        found += self._repaired("critic", conversation_tokens).times(revisions + 1)
        return found + self._repaired("reviser", conversation_tokens + self._config.critic.max_tokens).times(revisions)

    def _repaired(self, part: Part, conversation_tokens: int) -> Amounts:
        """A request and the repair turn after it, which repeats it with the unreadable reply."""
        reply = self._endpoint(part).max_tokens
        return self._request(part, conversation_tokens, True) + self._request(part, conversation_tokens + reply, True)

    def _calibration(self, stages: int, at_worst: bool) -> Amounts:
        """The probes that a model critic has to judge before anything else."""
        if self._config.critic.model == RULES_MODEL or self._config.calibration_auc == 0:
            return Amounts()
        found = Amounts()
        for probe in PROBES:
            if probe.principle in self._soul.ids:
                length = _tokens(json.dumps(prompts.critic_messages(probe.conversation, "")))
                found += self._repaired("critic", length) if at_worst else self._request("critic", length, False)
        return found.times(stages)

    def _request(self, part: Part, conversation_tokens: int, at_worst: bool) -> Amounts:
        endpoint = self._endpoint(part)
        asked = _tokens(prompts.system_prompt(part, self._soul) + self._form(part)) + conversation_tokens
        said = endpoint.max_tokens if at_worst else min(_tokens(_SHORTEST_REPLY[part]), endpoint.max_tokens)
        price = price_of(endpoint)
        return Amounts(1, asked, said, None if price is None else price.of(asked, said))

    def _form(self, part: Part) -> str:
        """What goes with the messages: tools, or the schema of the reply."""
        if part == "generator":
            return json.dumps(prompts.tool_schemas())
        if self._endpoint(part).structured_output != "json_schema":
            return ""
        return json.dumps(prompts.critic_schema(self._soul) if part == "critic" else prompts.reviser_schema())

    def _endpoint(self, part: Part) -> EndpointConfig:
        found: EndpointConfig = getattr(self._config, part)
        return found


def _tokens(text: str) -> int:
    return -(-len(text.encode()) // BYTES_PER_TOKEN)
