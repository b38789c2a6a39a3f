//! Optimizers on the host: AdamW and its kin as single fused passes over a shard.
