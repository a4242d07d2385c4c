"""Sources, deduplication, shards, packing: from documents to batches of token ids."""
