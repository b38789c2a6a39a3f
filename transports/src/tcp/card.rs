//! What a rank tells the others about how to reach it, and reading what the others tell.
//!
//! ```text
//! "BTC1"  id 16  host 16  netns 8  port4 2  port6 2  name_bytes 1  name
//! count 1  count x ( family 1: 4 or 6, address 4 or 16 )          all integers little-endian
//! ```

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::CARD_BYTES_MAX;

const MAGIC: [u8; 4] = *b"BTC1";
const NAME_BYTES_MAX: usize = 64;

/// The most addresses that a card lists.
pub(super) const ADDRESSES_MAX: usize = 32;
const _: () =
    assert!(4 + 16 + 16 + 8 + 4 + 1 + NAME_BYTES_MAX + 1 + 17 * ADDRESSES_MAX < CARD_BYTES_MAX);

/// A rank as others see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Card {
    /// Drawn at random when the port was opened: whoever answers at an address must own this.
    pub(super) id: [u8; 16],
    /// Which boot of which machine.
    pub(super) host: [u8; 16],
    /// Which network namespace of that machine.
    pub(super) netns: u64,
    /// Where it listens with IPv4, or 0.
    pub(super) port4: u16,
    /// Where it listens with IPv6, or 0.
    pub(super) port6: u16,
    /// The machine's name, for messages.
    pub(super) name: String,
    /// Its addresses, best first.
    pub(super) addresses: Vec<IpAddr>,
}

impl Card {
    /// The card as bytes.
    pub(super) fn serialise(&self) -> Vec<u8> {
        assert!(self.name.len() <= NAME_BYTES_MAX && self.addresses.len() <= ADDRESSES_MAX);
        let mut bytes = Vec::with_capacity(CARD_BYTES_MAX);
        bytes.extend(MAGIC);
        bytes.extend(self.id);
        bytes.extend(self.host);
        bytes.extend(self.netns.to_le_bytes());
        bytes.extend(self.port4.to_le_bytes());
        bytes.extend(self.port6.to_le_bytes());
        bytes.push(self.name.len() as u8);
        bytes.extend(self.name.as_bytes());
        bytes.push(self.addresses.len() as u8);
        for address in &self.addresses {
            match address {
                IpAddr::V4(v4) => {
                    bytes.push(4);
                    bytes.extend(v4.octets());
                }
                IpAddr::V6(v6) => {
                    bytes.push(6);
                    bytes.extend(v6.octets());
                }
            }
        }
        assert!(bytes.len() <= CARD_BYTES_MAX);
        bytes
    }

    /// Read a card that came from the network. Errors: what is wrong with it.
    pub(super) fn parse(bytes: &[u8]) -> Result<Card, &'static str> {
        let mut rest = Reader(bytes);
        if rest.array()? != MAGIC {
            return Err("the card does not start as a tcp card does");
        }
        let card = Card {
            id: rest.array()?,
            host: rest.array()?,
            netns: u64::from_le_bytes(rest.array()?),
            port4: u16::from_le_bytes(rest.array()?),
            port6: u16::from_le_bytes(rest.array()?),
            name: rest.name()?,
            addresses: rest.addresses()?,
        };
        if !rest.0.is_empty() {
            return Err("the card is longer than it says");
        }
        if card.port4 == 0 && card.port6 == 0 {
            return Err("the card has no port");
        }
        Ok(card)
    }

    /// Whether the two ranks can use loopback addresses with each other.
    pub(super) fn shares_loopback(&self, other: &Card) -> bool {
        self.host == other.host && self.netns == other.netns
    }

    /// Whether two ranks have a way to each other: a family in which both listen and have an
    /// address that means something to the other. Symmetric, so that both ranks judge alike.
    pub(super) fn reaches(&self, other: &Card) -> bool {
        let near = self.shares_loopback(other);
        let speaks = |card: &Card, is_ipv4: bool| {
            card.addresses.iter().any(|address| {
                address.is_ipv4() == is_ipv4
                    && (near || !address.is_loopback())
                    && card.port_for(address).is_some()
            })
        };
        [true, false].into_iter().any(|family| speaks(self, family) && speaks(other, family))
    }

    /// Where it listens for connections to `address`, if it does.
    pub(super) fn port_for(&self, address: &IpAddr) -> Option<u16> {
        let port = if address.is_ipv4() { self.port4 } else { self.port6 };
        (port != 0).then_some(port)
    }
}

/// What is left to be read.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, count: usize) -> Result<&'a [u8], &'static str> {
        let (taken, rest) = self.0.split_at_checked(count).ok_or("the card ends early")?;
        self.0 = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], &'static str> {
        Ok(self.take(N)?.try_into().expect("take returns as many as were asked for"))
    }

    fn name(&mut self) -> Result<String, &'static str> {
        let [length] = self.array()?;
        if usize::from(length) > NAME_BYTES_MAX {
            return Err("the name on the card is too long");
        }
        let name = std::str::from_utf8(self.take(length.into())?);
        let name = name.map_err(|_| "the name on the card is not text")?;
        if name.chars().any(char::is_control) {
            return Err("the name on the card is not a name");
        }
        Ok(name.into())
    }

    fn addresses(&mut self) -> Result<Vec<IpAddr>, &'static str> {
        let [count] = self.array()?;
        if usize::from(count) > ADDRESSES_MAX {
            return Err("the card lists too many addresses");
        }
        (0..count)
            .map(|_| match self.array()? {
                [4] => Ok(Ipv4Addr::from(self.array::<4>()?).into()),
                [6] => Ok(Ipv6Addr::from(self.array::<16>()?).into()),
                _ => Err("an address on the card is neither IPv4 nor IPv6"),
            })
            .collect()
    }
}

/// A name shortened to what a card holds, with nothing in it that could disturb a terminal.
pub(super) fn fitting_name(name: &str) -> String {
    let mut short = String::new();
    for letter in name.trim().chars().filter(|letter| !letter.is_control()) {
        if short.len() + letter.len_utf8() > NAME_BYTES_MAX {
            break;
        }
        short.push(letter);
    }
    short
}

#[cfg(test)]
mod tests {
    use super::*;

    fn largest() -> Card {
        let addresses = (0..ADDRESSES_MAX as u16).map(|i| {
            if i % 3 == 0 {
                Ipv4Addr::new(10, 0, 0, i as u8).into()
            } else {
                Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, i).into()
            }
        });
        Card {
            id: [1; 16],
            host: [2; 16],
            netns: 3,
            port4: 4,
            port6: 5,
            name: "n".repeat(NAME_BYTES_MAX),
            addresses: addresses.collect(),
        }
    }

    #[test]
    fn a_card_reads_back() {
        let card = largest();
        assert_eq!(Card::parse(&card.serialise()), Ok(card));
    }

    #[test]
    fn a_cut_or_lengthened_card_is_refused() {
        let bytes = largest().serialise();
        for length in 0..bytes.len() {
            assert!(Card::parse(&bytes[..length]).is_err(), "{length}");
        }
        assert!(Card::parse(&[bytes.as_slice(), &[0]].concat()).is_err());
    }

    #[test]
    fn random_bytes_never_panic_and_what_parses_is_written_the_same() {
        let seed = fastrand::u64(..);
        println!("seed {seed}");
        let mut random = fastrand::Rng::with_seed(seed);
        let bytes = largest().serialise();
        for _ in 0..20_000 {
            let mut hostile = bytes.clone();
            for _ in 0..random.usize(1..4) {
                let place = random.usize(..hostile.len());
                hostile[place] = random.u8(..);
            }
            hostile.truncate(random.usize(..=hostile.len()).max(random.usize(..=hostile.len())));
            if let Ok(card) = Card::parse(&hostile) {
                assert_eq!(card.serialise(), hostile, "seed {seed}");
            }
        }
    }

    #[test]
    fn names_are_shortened_at_a_letter() {
        let name = fitting_name(&format!("\u{1b}[31m{}\n", "é".repeat(60)));
        assert!(name.len() <= NAME_BYTES_MAX && name.starts_with("[31mé"), "{name}");
    }
}
