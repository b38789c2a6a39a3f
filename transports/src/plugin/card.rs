//! What a rank tells the others: which network it has, and its card of TCP.
//!
//! ```text
//! "BPL1"  name_bytes 1  name  card of tcp
//! ```

const MAGIC: [u8; 4] = *b"BPL1";
const NAME_BYTES_MAX: usize = 64;

/// The card of a rank with this network.
pub(super) fn serialise(name: &str, tcp: &[u8]) -> Vec<u8> {
    let name = &name.as_bytes()[..name.len().min(NAME_BYTES_MAX)];
    let mut card = Vec::with_capacity(5 + name.len() + tcp.len());
    card.extend(MAGIC);
    card.push(name.len() as u8);
    card.extend(name);
    card.extend(tcp);
    card
}

/// The card of TCP in a card of the same network.
pub(super) fn parse<'a>(name: &str, card: &'a [u8]) -> Option<&'a [u8]> {
    let own = serialise(name, &[]);
    card.strip_prefix(&own[..])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_card_of_another_network_is_none() {
        let card = serialise("Brigade", b"tcp");
        assert_eq!(parse("Brigade", &card), Some(&b"tcp"[..]));
        for other in ["", "Brigad", "Brigades", "IB"] {
            assert_eq!(parse(other, &card), None, "{other}");
        }
        for length in 0..5 {
            assert_eq!(parse("Brigade", &card[..length]), None);
        }
        let long = "n".repeat(300);
        assert_eq!(parse(&long, &serialise(&long, b"x")), Some(&b"x"[..]));
    }
}
