//! One test body, all transports.
//!
//! Every case knows a transport by nothing but the contract in `brigade_transports`. To add a
//! transport, add a line to the table; to add a case, write it once and name it in the list.
//! A case takes what makes one transport for each rank, and says what lengths are on the edge for
//! its wires, which the contract leaves open; ranks are threads here. Where this machine lacks what
//! a transport needs (IPv6, say), its cases say so and do nothing.

mod bells;
mod endings;
mod flow;
mod foreign;
mod groups;
mod harness;
mod joining;
mod late;
mod stopped;
mod streams;
mod windows;

use std::time::Duration;

use crate::harness::{Make, Sizes};

use brigade_transports::Transport;
use brigade_transports::loopback::{Clock, World};
use brigade_transports::rdma::{Rdma, Settings as RdmaSettings};
use brigade_transports::shm::{Settings as ShmSettings, Shm};
use brigade_transports::tcp::{Settings as TcpSettings, Tcp};

/// One test function for each case.
macro_rules! cases {
    ($make:expr; $($room:ident: $($case:ident),*;)*) => {
        $($(
            #[test]
            fn $case() {
                if crate::harness::is_usable($make) {
                    crate::$room::$case($make);
                }
            }
        )*)*
    };
}

/// One module of tests for each transport.
macro_rules! conformance {
    ($($transport:ident: $make:expr;)*) => {
        $(
            mod $transport {
                cases! {
                    $make;
                    streams: every_small_size_arrives, sizes_around_the_edges_arrive,
                        random_sizes_and_granules_arrive,
                        elements_pushed_in_parts_arrive_whole, both_directions_flow_at_once,
                        wires_work_on_other_threads,
                        a_full_wire_holds_back_and_loses_nothing, nothing_is_pushed_and_pulled;
                    endings: what_was_pushed_before_leaving_arrives,
                        a_long_message_survives_its_senders_leaving,
                        pushing_to_one_who_left_fails, others_go_on_when_one_leaves;
                    bells: a_wait_ends_in_time, no_ring_is_lost, credit_rings_a_sleeping_sender,
                        a_ring_ends_a_long_sleep, a_disarmed_bell_can_be_armed_again;
                    groups: two_groups_do_not_mix, members_may_be_missing,
                        subsets_in_other_orders, sixteen_members_in_all_pairs,
                        groups_come_and_go, a_late_member_misses_nothing;
                    joining: caps_are_sane, cards_are_judged_alike, garbage_is_no_card,
                        a_missing_member_is_named_in_time, a_wrong_secret_moves_no_bytes;
                    windows: puts_land_before_their_signal, a_window_is_read_from_afar,
                        a_signal_rings_the_owner, the_bounds_of_a_window_hold,
                        garbage_is_no_window;
                }
            }
        )*
    };
}

conformance! {
    loopback_real: crate::LOOPBACK_REAL;
    loopback_slow: crate::LOOPBACK_SLOW;
    loopback_virtual: crate::LOOPBACK_VIRTUAL;
    shm: crate::SHM;
    shm_small: crate::SHM_SMALL;
    tcp_v4: crate::TCP_V4;
    tcp_v6: crate::TCP_V6;
    tcp_four_sockets: crate::TCP_FOUR_SOCKETS;
    tcp_sealed: crate::TCP_SEALED;
    tcp_sealed_four_sockets: crate::TCP_SEALED_FOUR_SOCKETS;
    rdma: crate::RDMA;
    rdma_small: crate::RDMA_SMALL;
    plugin: crate::PLUGIN;
}

const LOOPBACK_REAL: Make = Make::new(loopback_real, |_| sizes(64, 256));
const LOOPBACK_SLOW: Make = Make::new(loopback_slow, |_| sizes(4, 16));
const LOOPBACK_VIRTUAL: Make = Make::new(loopback_virtual, |_| sizes(1, 4));
/// Members share what one has for those who send to it.
const SHM: Make = Make::new(shm, |members| sizes(64, (2 << 10) / (members - 1).max(1)));
const SHM_SMALL: Make = Make::new(shm_small, |_| sizes(4, 16));
const TCP_V4: Make = Make::new(tcp_v4, of_sockets);
const TCP_V6: Make = Make::new(tcp_v6, of_sockets);
const TCP_FOUR_SOCKETS: Make = Make::new(tcp_four_sockets, of_sockets);
const TCP_SEALED: Make = Make::new(tcp_sealed, of_sockets);
const TCP_SEALED_FOUR_SOCKETS: Make = Make::new(tcp_sealed_four_sockets, of_sockets);
const RDMA: Make = Make::new(rdma, |_| sizes(128, 1 << 10));
const RDMA_SMALL: Make = Make::new(rdma_small, |_| sizes(4, 16));
const PLUGIN: Make = Make::new(foreign::plugin, |_| sizes(128, 512));

/// In KiB.
const fn sizes(bulk: usize, credit: usize) -> Sizes {
    Sizes { bulk_bytes: bulk << 10, credit_bytes: credit << 10 }
}

/// What the kernel's buffers hold at least, with its default limits: 64 KiB on the receiving side
/// and 80 KiB on the sending side, before it adapts them.
fn of_sockets(_members: usize) -> Sizes {
    sizes(128, 128)
}

fn loopback_real(ranks: usize) -> Vec<Box<dyn Transport>> {
    by_rank(World::new(ranks), ranks)
}

fn shm(ranks: usize) -> Vec<Box<dyn Transport>> {
    many(ranks, Shm::new)
}

/// The smallest rings there are.
fn shm_small(ranks: usize) -> Vec<Box<dyn Transport>> {
    let settings =
        ShmSettings { inbound_bytes: 16 << 10, ring_bytes: 16 << 10, piece_bytes: 4 << 10 };
    many(ranks, || Shm::with(settings))
}

fn tcp_v4(ranks: usize) -> Vec<Box<dyn Transport>> {
    tcp(ranks, "127.0.0.0/8", 1, false)
}

fn tcp_v6(ranks: usize) -> Vec<Box<dyn Transport>> {
    tcp(ranks, "::1/128", 1, false)
}

fn tcp_four_sockets(ranks: usize) -> Vec<Box<dyn Transport>> {
    tcp(ranks, "127.0.0.0/8", 4, false)
}

fn tcp_sealed(ranks: usize) -> Vec<Box<dyn Transport>> {
    tcp(ranks, "127.0.0.0/8", 1, true)
}

fn tcp_sealed_four_sockets(ranks: usize) -> Vec<Box<dyn Transport>> {
    tcp(ranks, "127.0.0.0/8", 4, true)
}

fn tcp(
    ranks: usize,
    interface: &str,
    sockets_per_peer: usize,
    encrypt: bool,
) -> Vec<Box<dyn Transport>> {
    let interface = Some(interface.to_owned());
    let settings = TcpSettings { sockets_per_peer, interface, encrypt, ..Default::default() };
    many(ranks, || Tcp::new(settings.clone()))
}

/// Over whatever devices there are; `tests/rdma-vm` has two soft ones.
fn rdma(ranks: usize) -> Vec<Box<dyn Transport>> {
    many(ranks, Rdma::default)
}

/// The smallest rings there are, and more queue pairs than devices.
fn rdma_small(ranks: usize) -> Vec<Box<dyn Transport>> {
    let settings = RdmaSettings { ring_bytes: 16 << 10, queue_pairs: 3, ..Default::default() };
    many(ranks, || Rdma::new(settings.clone()))
}

/// The same transport for each rank.
fn many<T: Transport + 'static>(ranks: usize, make: impl Fn() -> T) -> Vec<Box<dyn Transport>> {
    (0..ranks).map(|_| Box::new(make()) as Box<dyn Transport>).collect()
}

/// Real time, but pieces take a while, and pushes and pulls do less than they could.
fn loopback_slow(ranks: usize) -> Vec<Box<dyn Transport>> {
    let us = Duration::from_micros;
    let world = World::new(ranks).credit_bytes(16 << 10).bulk_bytes(4 << 10).delay(us(1)..us(60));
    by_rank(world.short_pushes().short_pulls().seed(11), ranks)
}

fn loopback_virtual(ranks: usize) -> Vec<Box<dyn Transport>> {
    let us = Duration::from_micros;
    let world = World::new(ranks).clock(Clock::Virtual).seed(12).delay(us(1)..us(60));
    by_rank(world.credit_bytes(4 << 10).bulk_bytes(1 << 10).short_pushes().short_pulls(), ranks)
}

fn by_rank(world: World, ranks: usize) -> Vec<Box<dyn Transport>> {
    (0..ranks).map(|rank| Box::new(world.transport_of(rank)) as Box<dyn Transport>).collect()
}
