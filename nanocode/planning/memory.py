"""Memory a chip by formula: what a training step keeps, before any compiler is asked.

Activations after Korthikanti et al. 2022 (arXiv 2205.05198), counted for this model's layers: what a backward pass
needs of a layer, in channels of width. Held against the TPU compiler for layers in a loop (d12, d20 and d24 on v6e:2x4:
within 6 %), not for layers one by one. It refuses what plainly cannot fit and says which number to change.
"""

from __future__ import annotations

from dataclasses import dataclass

from nanocode.config import Config, ConfigError, ModelConfig
from nanocode.model.depth import Shape, shape
from nanocode.planning.chips import Chip
from nanocode.planning.stages import PlannedStage
from nanocode.training.cross_entropy import CHUNK_POSITIONS
from nanocode.training.sharding import Layout, fewest_parts

FLOAT = 4
USABLE = 0.95  # of the memory of a chip: the rest is the runtime's, and fragments

# Channels of a layer that the backward pass reads: both norms' inputs and outputs (4), q, k, v and the rotated, normed
# q and k (5), attention's output (1); the MLP's hidden layer twice, before and after the square (2 a unit of its
# ratio).
_LAYER_CHANNELS = 10
_HIDDEN_COPIES = 2
# What a loop over layers keeps besides, by what the TPU compiler asked for: its body's residuals are stored as they
# are, float32 insides of norms among them, and nothing is fused into the backward pass instead.
_LOOP_CHANNELS = 15


@dataclass(frozen=True)
class ChipMemory:
    """Bytes on one chip while a step runs."""

    parameters: int
    optimizer: int
    gradients: int
    gathered: int  # weights as they are multiplied: whole over fsdp, in the type of the activations
    activations: int
    head: int  # the loss: one chunk of logits, the gradient of the output table

    @property
    def total(self) -> int:
        return self.parameters + self.optimizer + self.gradients + self.gathered + self.activations + self.head


def chip_memory(config: Config, stage: PlannedStage, asked: Layout) -> ChipMemory:
    """What one chip of a layout holds in a training step of a stage."""
    model = shape(config.model, config.tokenizer.vocab_size)
    kept = FLOAT * model.parameters // (asked.fsdp * asked.tensor)
    tables = model.parameters - model.matrix_parameters
    momentum = FLOAT * model.matrix_parameters // asked.devices
    width = 2 if config.model.dtype == "bfloat16" else FLOAT
    rows = rows_at_once(config, stage, asked)
    tokens = rows * config.model.context_tokens
    return ChipMemory(
        parameters=kept,
        optimizer=momentum + 2 * FLOAT * tables // (asked.fsdp * asked.tensor),
        gradients=kept * (2 if rows < stage.rows // asked.row_shards else 1),
        gathered=width * model.parameters // asked.tensor,
        activations=tokens * width * _kept_channels(model, config.model) // asked.tensor,
        head=(3 * FLOAT * rows * CHUNK_POSITIONS + FLOAT * model.width) * model.vocab // asked.tensor,
    )


def rows_at_once(config: Config, stage: PlannedStage, asked: Layout) -> int:
    """Rows that a device computes at once: the batch's share, cut by `compute.device_batch_rows`."""
    share = stage.rows // asked.row_shards
    return share // fewest_parts(share, config.compute.device_batch_rows)


def _kept_channels(model: Shape, config: ModelConfig) -> int:
    """Over all layers: what the backward pass reads, or, recomputed by blocks, each block's input and one whole
    block.
    """
    hidden = model.mlp_width
    matmuls = 4 * model.width + 2 * model.kv_width + hidden
    channels = _LAYER_CHANNELS + (_LOOP_CHANNELS if config.scan_layers else 0)
    full = channels * model.width + _HIDDEN_COPIES * hidden
    if config.remat == "none":
        return model.layers * full
    if config.remat == "matmuls":
        return model.layers * matmuls + full
    return model.layers * model.width + full


def check_memory(memory: ChipMemory, chip: Chip, stage: PlannedStage, rows: int, asked: Layout) -> None:
    """Raise ConfigError for what cannot fit, with the numbers to change."""
    usable = USABLE * chip.memory_bytes
    if memory.total <= usable:
        return
    cures = []
    if memory.activations > memory.total / 4:
        cures.append(f"lower compute.device_batch_rows below {rows}, or set model.remat to 'block'")
    if memory.parameters + memory.optimizer + memory.gradients > usable / 2:
        cures.append(f"raise compute.mesh_fsdp above {asked.fsdp}")
    cures.append("take more or larger chips")
    raise ConfigError(
        f"{stage.name} cannot fit: by formula {memory.total / 1e9:.1f} GB a chip ({memory.activations / 1e9:.1f} GB of "
        f"activations, {(memory.parameters + memory.optimizer + memory.gradients) / 1e9:.1f} GB of weights, gradients "
        f"and optimizer) of {chip.memory_bytes / 1e9:.0f} GB on {chip.name}: {'; '.join(cures)}"
    )
