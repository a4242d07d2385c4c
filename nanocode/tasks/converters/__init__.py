"""Public instruction sets as conversations of an agent whose tool calls were really executed."""
