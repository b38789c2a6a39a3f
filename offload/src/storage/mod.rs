//! Transfers between arena memory and files: io_uring, or threads where it is forbidden.
