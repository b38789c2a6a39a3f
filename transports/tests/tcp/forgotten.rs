//! A communicator that one rank does not join: what others have opened for it does not stay there.

use std::time::{Duration, Instant};

use brigade_transports::tcp::{Settings, Tcp};
use brigade_transports::{Group, Transport, TransportError};

#[test]
fn what_has_come_for_a_communicator_that_is_not_joined_goes_with_it() {
    let [own, peer] = [(); 2].map(|()| Tcp::new(Settings::default()).open([7; 32]).unwrap());
    let cards = [own.card(), peer.card()];
    let cards = [Some(&cards[0][..]), Some(&cards[1][..])];
    let deadline = Instant::now() + Duration::from_secs(20);
    let group = |id| Group { id, me: 1, cards: &cards, deadline };
    let mut endpoint = peer.join(&group(1)).unwrap();
    let mut sender = endpoint.sender(0, deadline).expect("it is taken before anybody joins");
    let mut receiver = endpoint.receiver(0).unwrap();
    assert_eq!(sender.push(&[1; 64]), Ok(64));
    own.forget(1);
    let gone = loop {
        match receiver.pull_into(&mut [0; 8]) {
            Ok(0) if Instant::now() < deadline => std::thread::sleep(Duration::from_millis(1)),
            other => break other,
        }
    };
    assert!(matches!(gone, Err(TransportError::PeerGone { peer: 0, .. })), "{gone:?}");
    // Who comes later is told.
    drop((sender, receiver, endpoint));
    own.forget(2);
    let late = peer.join(&group(2)).unwrap().sender(0, deadline).map(drop);
    assert!(matches!(late, Err(TransportError::PeerGone { peer: 0, .. })), "{late:?}");
}
