//! The streamed step: overlapped, the same bits as in memory, and never half reported.

mod device;
mod faults;
mod overlap;
mod same;
mod state;
