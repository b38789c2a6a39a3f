//! What lives where, what moves in a step, and how long that takes: arithmetic, before any I/O.
