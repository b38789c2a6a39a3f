//! Network plugins of NCCL.
pub mod sys;
