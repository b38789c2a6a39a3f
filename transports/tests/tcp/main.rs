//! TCP beyond what every transport must do (see `conformance`): strangers, ports, several sockets,
//! dead processes, processes without a file to spare, and ranks on different hosts.

mod deaths;
mod files;
mod forgotten;
mod hosts;
mod rank;
mod strangers;
mod streams;
