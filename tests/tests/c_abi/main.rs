//! libbrigade and libbrigade_nccl as programs in C and C++ meet them: installed, found, compiled
//! against, linked, run.
//!
//! What a machine lacks (a compiler, valgrind, mpirun, cmake) is skipped with a sentence.

mod cost;
mod install;
mod library;
mod nccl;
mod programs;
mod symbols;
