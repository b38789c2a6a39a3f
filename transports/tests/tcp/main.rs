//! TCP beyond what every transport must do (see `conformance`): strangers, ports, several sockets,
//! dead processes, and ranks on different hosts.

mod deaths;
mod hosts;
mod rank;
mod strangers;
mod streams;
