"""The whole pipeline: from raw text and code to a released coding agent.

    python flows/full_pipeline.py run                                  # configs/nano.toml
    python flows/full_pipeline.py --config config configs/d12.toml run # another config (before `run`)
    python flows/full_pipeline.py run --override 'dpo.lr=2e-4; seed=2' # single values
    python flows/full_pipeline.py run --reuse 'pretrain, sft'          # keep these although their code was edited
    python flows/full_pipeline.py resume                               # go on after a failure
    python flows/full_pipeline.py card view sft                        # look at a stage's card

Each step looks its artifact up by cache key and makes it only on a miss; steps pass record digests, never arrays. A
step that was killed goes on from its last checkpoint, whichever run or machine continues it.
"""

if __name__ == "__main__":
    # Metaflow runs this file as a script for every task and reads its settings when it is imported: set them first.
    import os
    import sys
    from pathlib import Path

    _ROOT = Path(__file__).resolve().parents[1]
    sys.path.insert(0, str(_ROOT))
    from flows.environment import prepare

    prepare(os.environ, sys.argv, _ROOT, os.getpid())

import time
from pathlib import Path

from metaflow import Config, FlowSpec, Parameter, card, current, retry, step

# Metaflow ships the packages imported here to wherever the steps run: keep these imports at the top.
import artifacts  # noqa: F401
import nanocode  # noqa: F401
import steps  # noqa: F401
from flows import packaging
from flows.lazily import lazily
from flows.task import stage

cards, pipeline = lazily("flows.cards"), lazily("steps.pipeline")
config_file, planned = lazily("nanocode.config_file"), lazily("nanocode.planning.stages")

DEFAULT_CONFIG = str(Path(__file__).resolve().parents[1] / "configs" / "nano.toml")


class FullPipeline(FlowSpec):
    """Train a small coding agent end to end: data, tokenizer, pretraining, constitutional data, SFT, DPO, release."""

    config = Config("config", default=DEFAULT_CONFIG, parser="flows.settings.read_config", help="TOML file of the run")
    override = Parameter("override", default="", help="values to change: 'section.key=value; section.key=value'")
    reuse = Parameter("reuse", default="", help="stages not to make again for an edit of code alone: 'pretrain, sft'")

    @step
    @stage
    def start(self):
        """Check the configuration and list what fans out; downloaded benchmarks are checked and enter the lineage."""
        self.started = time.time()
        settings = self.settings()
        planned.plan_stages(settings)  # a model that cannot be built is refused here, not after hours of data
        if self.reuse:
            pipeline.check_reuse(pipeline.read_names(self.reuse), settings)
        self.benchmarks = pipeline.import_benchmarks(self.run())
        self.sources = [source.name for source in settings.data.sources]
        self.rollout_shards = pipeline.rollout_shards(settings)
        self.next(self.shard_data, foreach="sources")

    @step
    @stage
    def shard_data(self):
        """One source: read, filter, deduplicate, split, shard."""
        self.source, self.shard = self.input, pipeline.shard_data(self.run(), self.input)
        self.next(self.gather_shards)

    @step
    @stage
    def gather_shards(self, inputs):
        """The shards of all sources, by name."""
        self.merge_artifacts(inputs, include=["started", "rollout_shards", "benchmarks"])
        self.shards = {task.source: task.shard for task in inputs}
        self.next(self.fit_tokenizer)

    @step
    @stage
    def fit_tokenizer(self):
        """Byte-level BPE over all sources; the SOUL enters the lineage."""
        self.soul = pipeline.import_soul(self.run())
        self.tokenizer = pipeline.fit_tokenizer(self.run(), self.shards)
        self.next(self.pretrain, self.plan_rollouts)

    @card(type="blank", id="pretrain")
    @retry(times=1, minutes_between_retries=0)
    @step
    @stage
    def pretrain(self):
        """The base model."""
        self.base = pipeline.pretrain(self.run(), self.shards, self.tokenizer)
        cards.training(current.card["pretrain"], self.run(), self.base)
        self.next(self.evaluate_base)

    @step
    @stage
    def evaluate_base(self):
        """What the base model can do: the yardstick for the stages after it."""
        self.base_evaluation = pipeline.evaluate(
            self.run(), "base", self.base, self.tokenizer, self.shards, self.soul, benchmarks=self.benchmarks
        )
        self.next(self.sft)

    @step
    @stage
    def plan_rollouts(self):
        """Fan out over shards of the SFT and preference tasks."""
        pipeline.tidy_ledgers(self.run())
        self.next(self.generate_rollouts, foreach="rollout_shards")

    @retry(times=1, minutes_between_retries=0)
    @step
    @stage
    def generate_rollouts(self):
        """One shard of constitutional data: draft with real tools, critique, revise."""
        self.rollouts = pipeline.generate_rollouts(self.run(), self.input, self.tokenizer, self.soul)
        self.split, self.order = self.input[:2]
        self.next(self.gather_rollouts)

    @card(type="blank", id="data")
    @step
    @stage
    def gather_rollouts(self, inputs):
        """The shards become one set of conversations and one set of pairs."""
        self.merge_artifacts(inputs, include=["started", "soul", "shards", "tokenizer"])
        shards = {split: [] for split in ("sft", "preference")}
        for task in sorted(inputs, key=lambda task: task.order):
            shards[task.split].append(task.rollouts)
        self.conversations = pipeline.gather_rollouts(self.run(), "sft", shards["sft"])
        sets = pipeline.convert_instructions(self.run(), self.tokenizer)
        restyled = {
            split: pipeline.restyle_instructions(self.run(), split, sets, self.tokenizer, self.soul) for split in shards
        }
        self.instructions = sets | restyled["sft"]
        shown = sets | {f"{name}, restyled": record for name, record in restyled["sft"].items()}
        pairs = [*shards["preference"], *restyled["preference"].values()]
        self.pairs = pipeline.gather_rollouts(self.run(), "preference", pairs)
        cards.data(current.card["data"], self.run(), self.conversations, self.pairs, shown)
        self.next(self.sft)

    @card(type="blank", id="sft")
    @retry(times=1, minutes_between_retries=0)
    @step
    @stage
    def sft(self, inputs):
        """Fine-tune on the conversations."""
        self.merge_artifacts(
            inputs,
            include=[
                "started", "soul", "shards", "tokenizer", "base", "base_evaluation", "conversations", "pairs",
                "instructions", "benchmarks",
            ],
        )  # fmt: skip
        self.sft_model = pipeline.sft(self.run(), self.base, self.tokenizer, self.conversations, self.instructions)
        cards.training(current.card["sft"], self.run(), self.sft_model)
        self.next(self.dpo)

    @card(type="blank", id="dpo")
    @step
    @stage
    def dpo(self):
        """Align with the preference pairs, against the frozen SFT model."""
        self.reference = pipeline.reference(self.run(), self.sft_model, self.tokenizer, self.pairs)
        self.dpo_model = pipeline.dpo(self.run(), self.sft_model, self.tokenizer, self.pairs, self.reference)
        cards.training(current.card["dpo"], self.run(), self.dpo_model)
        self.next(self.evaluate)

    @card(type="blank", id="evaluation")
    @step
    @stage
    def evaluate(self):
        """The SFT and DPO models on the tasks that the base model had."""
        preferences = (self.pairs, self.reference)
        self.evaluations = {"base": self.base_evaluation}
        for name, model in (("sft", self.sft_model), ("dpo", self.dpo_model)):
            self.evaluations[name] = pipeline.evaluate(
                self.run(), name, model, self.tokenizer, self.shards, self.soul,
                preferences if name == "dpo" else None, self.benchmarks,
            )  # fmt: skip
        cards.evaluation(current.card["evaluation"], self.run(), self.evaluations)
        self.next(self.release)

    @step
    @stage
    def release(self):
        """A named, numbered model version."""
        record = pipeline.assemble(
            self.run(), self.dpo_model, self.tokenizer, self.soul, self.evaluations, self.conversations
        )
        self.released = pipeline.release(self.run(), record, time.time() - self.started).to_json()
        self.next(self.end)

    @step
    @stage
    def end(self):
        """Say what came out and what to do next."""
        for line in cards.farewell(self.released, self.run().repository.store.url):
            pipeline.say(line)

    def settings(self):
        """The validated configuration of this run, overrides applied."""
        overrides = [part.strip() for part in self.override.split(";") if part.strip()]
        return config_file.with_overrides(self.config.to_dict(), overrides)

    def run(self):
        """What every stage needs: config, store, provenance, a voice and a stop signal."""
        return pipeline.Run.open(
            self.settings(), flow=current.flow_name, run_id=current.run_id, reuse=pipeline.read_names(self.reuse)
        )


if __name__ == "__main__":
    packaging.open_archives_once()
    FullPipeline()
