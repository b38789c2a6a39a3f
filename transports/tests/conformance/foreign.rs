//! Our own network plugin, through the door for other people's.

use brigade_transports::Transport;
use brigade_transports::plugin::Plugin;
use brigade_transports::tcp::Settings as TcpSettings;

pub(crate) fn plugin(ranks: usize) -> Vec<Box<dyn Transport>> {
    // It is built as this test was.
    let path = brigade_built::folder().join("libnccl_net_brigade.so");
    let path = path.to_str().expect("a path in UTF-8");
    crate::many(ranks, || Plugin::new(path, TcpSettings::default()))
}
