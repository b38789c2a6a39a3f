//! What lies where in a file: superblocks, checksums, generations. Pure: no I/O happens here.
