//! The streamed step: overlapped, the same bits as in memory, and never half reported.

mod device;
mod faults;
mod overlap;
mod reins;
mod same;
mod simulated;
mod state;
