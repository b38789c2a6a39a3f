//! One communicator's share: its peers, its wires and its bell.

use std::collections::HashMap;
use std::sync::mpsc::TryRecvError;
use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, Instant};

use super::bell::Bell;
use super::hand::Request;
use super::inlet::{Inlet, Receiver};
use super::mouth::Mouth;
use super::net::Net;
use super::outlet::{Sender, lock};
use super::peer::{Calling, Connected};
use super::steward::{Deaths, Steward};
use crate::{Doorbell, Endpoint, Port, RecvWire, SendWire, TransportError, Windows};

/// How long an answer may take beyond the time that its asker has.
const ANSWER: Duration = Duration::from_millis(20);

/// One communicator.
pub(super) struct PluginEndpoint {
    inlets: Vec<Option<Arc<Mutex<Inlet>>>>,
    bell: Bell,
    deaths: Deaths,
    steward: Steward,
    /// Wires that the steward was asked for, by member.
    asked: HashMap<usize, Asked>,
}

/// A wire that the steward was asked for.
struct Asked {
    answers: mpsc::Receiver<Connected>,
    since: Instant,
    deadline: Instant,
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
        let (bell, asked) = (Bell::default(), HashMap::new());
        Ok(PluginEndpoint { inlets, bell, deaths, steward, asked })
    }

    fn mouth(&self) -> Mouth {
        self.steward.hand.mouth.clone()
    }

    fn ask(&self, peer: usize, deadline: Instant) -> Asked {
        let since = Instant::now();
        let (answer, answers) = mpsc::channel();
        let answers_given = Arc::clone(&self.bell.answers);
        let calling = Calling { deadline, since, answer, answers: answers_given, handle: None };
        self.steward.hand.ask(Request::Connect { peer, calling });
        Asked { answers, since, deadline }
    }
}

impl Endpoint for PluginEndpoint {
    fn connect(
        &mut self,
        to: usize,
        deadline: Instant,
    ) -> Result<Option<Box<dyn SendWire>>, TransportError> {
        let asked = self.asked.remove(&to).unwrap_or_else(|| self.ask(to, deadline));
        let outlet = match asked.answers.try_recv() {
            Err(TryRecvError::Empty) if Instant::now() < asked.deadline + ANSWER => {
                self.asked.insert(to, asked);
                return Ok(None);
            }
            Ok(answer) => answer?,
            Err(_) => {
                let what = format!("the wire to member {to}");
                let waited_ms = asked.since.elapsed().as_millis() as u64;
                return Err(TransportError::Timeout { what, waited_ms });
            }
        };
        self.bell.outlets.push(Arc::clone(&outlet));
        Ok(Some(Box::new(Sender::new(outlet, self.mouth()))))
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
