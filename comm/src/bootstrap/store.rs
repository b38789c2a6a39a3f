//! PyTorch's rendezvous: a store of keys and values that processes reach over TCP.
//!
//! A torchrun job has such a store already; as a client of it ([`StoreClient`]) a rank finds the
//! others without Python. As a server ([`StoreServer`]) we are where programs that use PyTorch
//! meet. It knows nothing of secrets: whoever reaches the port reads and writes everything, so it
//! listens where its owner says, and nowhere else.
//!
//! * `request`: what a client says, read as hostile; `book`: what it means, without a socket
//! * `server`: one loop around one poll; `client`: calls that wait until a deadline

mod book;
mod client;
mod request;
mod server;

pub use client::{StoreClient, StoreError};
pub use server::StoreServer;

/// What a client says first.
const MAGIC: u32 = 0x3C85_F7CE;
/// The prefix that every key of PyTorch's own clients has.
const KEY_PREFIX: &str = "/";
/// The answer to one who waited: go on.
const GO_ON: u8 = 0;
/// The answer to one who has ceased to wait.
const CANCELLED: u8 = 1;
/// The answer to whether keys exist.
const READY: u8 = 0;
const NOT_READY: u8 = 1;

/// The numbers of the requests.
mod number {
    pub(super) const VALIDATE: u8 = 0;
    pub(super) const SET: u8 = 1;
    pub(super) const COMPARE_SET: u8 = 2;
    pub(super) const GET: u8 = 3;
    pub(super) const ADD: u8 = 4;
    pub(super) const CHECK: u8 = 5;
    pub(super) const WAIT: u8 = 6;
    pub(super) const COUNT: u8 = 7;
    pub(super) const DELETE: u8 = 8;
    pub(super) const APPEND: u8 = 9;
    pub(super) const MULTI_GET: u8 = 10;
    pub(super) const MULTI_SET: u8 = 11;
    pub(super) const CANCEL_WAIT: u8 = 12;
    pub(super) const PING: u8 = 13;
    pub(super) const QUEUE_PUSH: u8 = 14;
    pub(super) const QUEUE_POP: u8 = 15;
    pub(super) const QUEUE_LENGTH: u8 = 16;
    pub(super) const LIST: u8 = 17;
    pub(super) const BARRIER: u8 = 18;
}

/// Append a string with its length.
fn write_text(target: &mut Vec<u8>, text: &[u8]) {
    target.extend((text.len() as u64).to_le_bytes());
    target.extend(text);
}
