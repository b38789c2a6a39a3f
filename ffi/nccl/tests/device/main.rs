//! NCCL's calls on memory of devices, with several ranks on one: on a driver that needs no device,
//! or on the machine's own with `BRIGADE_FAKE_CUDA=off`.

mod graphs;
mod library;
mod memory;
mod processes;
mod rank;
mod threads;
