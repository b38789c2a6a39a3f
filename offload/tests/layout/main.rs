//! The layout of state files: every crash leaves one generation whole, and hostile bytes are
//! refused.

mod cuts;
mod disk;
mod hostile;
mod overlaps;
mod parts;
