//! One communicator's share: its peers, its wires and its bell.

use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, Instant};

use super::bell::Bell;
use super::inlet::{Inlet, Receiver};
use super::net::Net;
use super::outlet::{Sender, lock};
use super::steward::{Deaths, Hand, Request, Steward};
use crate::{Caps, Doorbell, Endpoint, Port, RecvWire, SendWire, TransportError, Windows};

/// How long an answer may take beyond the time that its asker has.
const ANSWER: Duration = Duration::from_millis(20);

/// One communicator.
pub(super) struct PluginEndpoint {
    net: &'static Net,
    inlets: Vec<Option<Arc<Mutex<Inlet>>>>,
    bell: Bell,
    deaths: Deaths,
    steward: Steward,
}

impl PluginEndpoint {
    pub(super) fn start(
        net: &'static Net,
        tcp: (Box<dyn Endpoint>, Arc<dyn Port>),
        me: usize,
        served: &[bool],
    ) -> Result<PluginEndpoint, TransportError> {
        let inlet = |(peer, served): (usize, &bool)| {
            (*served && peer != me).then(|| Arc::new(Mutex::new(Inlet::new(peer))))
        };
        let inlets: Vec<_> = served.iter().enumerate().map(inlet).collect();
        let deaths = Deaths::default();
        let steward = Steward::start(net, tcp, &inlets, Arc::clone(&deaths))?;
        Ok(PluginEndpoint { net, inlets, bell: Bell::default(), deaths, steward })
    }

    fn hand(&self) -> Hand {
        self.steward.hand.clone()
    }
}

impl Endpoint for PluginEndpoint {
    fn caps(&self) -> Caps {
        self.net.caps()
    }

    fn sender(
        &mut self,
        to: usize,
        deadline: Instant,
    ) -> Result<Box<dyn SendWire>, TransportError> {
        let started = Instant::now();
        let (answer, answers) = mpsc::channel();
        self.steward.hand.ask(Request::Connect { peer: to, deadline, answer });
        let left = deadline.saturating_duration_since(started) + ANSWER;
        let outlet = answers.recv_timeout(left).unwrap_or_else(|_| {
            let what = format!("the wire to member {to}");
            let waited_ms = started.elapsed().as_millis() as u64;
            Err(TransportError::Timeout { what, waited_ms })
        })?;
        self.bell.outlets.push(Arc::clone(&outlet));
        Ok(Box::new(Sender::new(outlet, self.hand())))
    }

    fn receiver(&mut self, from: usize) -> Result<Box<dyn RecvWire>, TransportError> {
        let inlet = self.inlets[from].as_ref().expect("the caller asks for members with cards");
        self.bell.inlets.push(Arc::clone(inlet));
        Ok(Box::new(Receiver::new(Arc::clone(inlet))))
    }

    fn doorbell(&mut self) -> &mut dyn Doorbell {
        &mut self.bell
    }

    fn check(&mut self) -> Result<(), TransportError> {
        // Who has left in good order is no error here: its wires say so to those who want more.
        lock(&self.deaths).clone().map_or(Ok(()), Err)
    }

    fn windows(&mut self) -> Option<&mut dyn Windows> {
        None
    }
}
