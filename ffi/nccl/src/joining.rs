//! A communicator that is to be made, by another thread.

use std::sync::Arc;

use brigade_wall::failure::guard;
use brigade_wall::{Failure, Outcome};

use crate::comm::{Comm, Member};

/// A communicator that is to be made.
pub(crate) struct Joining {
    comm: Arc<Comm>,
    join: Option<Box<dyn FnOnce() -> Outcome<Option<Member>> + Send>>,
}

impl Joining {
    pub(crate) fn new(
        comm: Arc<Comm>,
        join: impl FnOnce() -> Outcome<Option<Member>> + Send + 'static,
    ) -> Self {
        Self { comm, join: Some(Box::new(join)) }
    }

    /// Have another thread do it.
    pub(crate) fn start(mut self) -> Outcome<Arc<Comm>> {
        let comm = Arc::clone(&self.comm);
        let thread = std::thread::Builder::new().name("brigade-join".into());
        let body = move || {
            if let Some(join) = self.join.take() {
                self.comm.joined.get_or_init(|| guard(join));
            }
        };
        match thread.spawn(body) {
            Ok(_) => Ok(comm),
            Err(error) => {
                Err(Failure::system(format!("no thread can be started to join: {error}")))
            }
        }
    }
}

impl Drop for Joining {
    /// Whoever waits for one that is never begun is told so.
    fn drop(&mut self) {
        if self.join.is_some() {
            let failure =
                || Err(Failure::usage("the group that should make it was not carried out"));
            self.comm.joined.get_or_init(failure);
        }
    }
}
