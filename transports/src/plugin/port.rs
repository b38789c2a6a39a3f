//! One rank's side of a plugin.

use std::sync::Arc;

use super::card;
use super::endpoint::PluginEndpoint;
use super::net::Net;
use crate::{Endpoint, Group, Port, TransportError};

/// A plugin, and how ranks meet to use it.
pub(super) struct PluginPort {
    net: &'static Net,
    tcp: Arc<dyn Port>,
}

impl PluginPort {
    pub(super) fn new(net: &'static Net, tcp: Arc<dyn Port>) -> PluginPort {
        PluginPort { net, tcp }
    }
}

impl Port for PluginPort {
    fn card(&self) -> Vec<u8> {
        card::serialise(self.net.name(), &self.tcp.card())
    }

    fn reaches(&self, card: &[u8]) -> bool {
        card::parse(self.net.name(), card).is_some_and(|tcp| self.tcp.reaches(tcp))
    }

    fn join_while(
        &self,
        group: &Group<'_>,
        go_on: &mut dyn FnMut(usize) -> bool,
    ) -> Result<Box<dyn Endpoint>, TransportError> {
        let parse = |(peer, card): (usize, &Option<&'_ [u8]>)| match card {
            None => Ok(None),
            Some(card) => match card::parse(self.net.name(), card) {
                // The lifetimes of cards are the group's.
                Some(tcp) => Ok(Some(tcp.to_vec())),
                None => {
                    let what = format!("its card is not one of {}", self.net.name());
                    Err(TransportError::Corrupt { peer, what })
                }
            },
        };
        let cards: Vec<_> = group.cards.iter().enumerate().map(parse).collect::<Result<_, _>>()?;
        let served: Vec<bool> = cards.iter().map(Option::is_some).collect();
        let cards: Vec<Option<&[u8]>> = cards.iter().map(Option::as_deref).collect();
        let tcp = self.tcp.join_while(&Group { cards: &cards, ..*group }, go_on)?;
        let tcp_port = Arc::clone(&self.tcp);
        Ok(Box::new(PluginEndpoint::start(self.net, (tcp, tcp_port), group.me, &served)?))
    }

    fn forget(&self, group: u64) {
        self.tcp.forget(group);
    }
}
