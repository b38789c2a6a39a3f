//! What a failed work request means, in words.

use std::fmt;

/// The status of a completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Status(pub u32);

impl Status {
    /// It worked.
    pub const SUCCESS: Status = Status(0);
    /// It was thrown away because another one had failed before it.
    pub const FLUSHED: Status = Status(5);
    /// Not of libibverbs: posting a request was refused.
    pub const REFUSED: Status = Status(100);
    /// Not of libibverbs: the other end found it broken.
    pub const BROKEN_AT_PEER: Status = Status(101);
    /// Not of libibverbs: it was neither done nor refused for too long.
    pub const SILENT: Status = Status(102);
    /// Not of libibverbs: completions cannot be asked for any more.
    pub const DEVICE_FAILED: Status = Status(19);
    /// The other end does not answer.
    pub const RETRIES_EXCEEDED: Status = Status(12);

    /// Whether it worked.
    pub fn is_success(self) -> bool {
        self == Self::SUCCESS
    }

    /// The name, what usually causes it, and what to look at next.
    pub fn words(self) -> [&'static str; 3] {
        const OURS: &str = "report it with the library's version";
        match self.0 {
            0 => ["success", "nothing went wrong", "go on"],
            1 => ["local length error", "a message was longer than the port's MTU allows", OURS],
            2 => [
                "local queue pair operation error",
                "the device could not do a request: a link is down, or there is no route",
                "look at the link, at the addresses, and at the kernel's log",
            ],
            3 | 17 | 18 => ["end-to-end context error", "a kind of queue that is not used", OURS],
            4 => ["local protection error", "our memory is not registered as it should be", OURS],
            5 => [
                "flushed",
                "the queue pair had failed or been stopped before",
                "look for the first error, at either end",
            ],
            6 => ["memory window error", "a kind of memory that is not used", OURS],
            7 => ["bad response", "the other end answered what was not asked", OURS],
            8 => ["local access error", "a peer wrote where our memory does not let it", OURS],
            9 => [
                "remote invalid request",
                "the other end could not take a request: its queues or MTU differ",
                "check that both ranks run the same version",
            ],
            10 => [
                "remote access error",
                "the other end's memory is not there any more, or the key is wrong",
                "look for an error of the peer",
            ],
            11 => ["remote operation error", "the other end's device failed", "look at its log"],
            12 => [
                "transport retries exceeded",
                "the other end does not answer: its process or host died, a link is down, or a \
                 wrong GID or VLAN, or packets as large as the MTU do not pass",
                "look at the peer, `rdma link`, the switch, and `ping` between the two addresses",
            ],
            13 => [
                "receiver not ready, retries exceeded",
                "the other end had no receive posted for too long",
                "look whether the peer was stopped",
            ],
            14 => ["local RDD violation", "a kind of queue that is not used", OURS],
            15 => ["remote invalid RD request", "a kind of queue that is not used", OURS],
            16 => ["remote aborted", "the other end gave up", "look for an error of the peer"],
            19 => ["fatal error", "the device failed", "look at the kernel's log"],
            20 => ["response timeout", "the device did not answer", "look at the kernel's log"],
            100 => ["refused", "the device took no more requests", "look at the kernel's log"],
            102 => [
                "silent",
                "the device neither did a request nor said why not",
                "look at the kernel's log; soft-RoCE of Linux 6.1 forgets requests",
            ],
            101 => ["broken", "the other end's half failed", "look for an error of the peer"],
            _ => ["general error", "the device says no more", "look at the kernel's log"],
        }
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [name, cause, next] = self.words();
        write!(f, "{name} (status {}): {cause}; next: {next}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_status_says_what_happened_and_what_to_do() {
        for code in 0..40 {
            let [name, cause, next] = Status(code).words();
            assert!(!name.is_empty() && cause.len() > 10 && !next.is_empty(), "{code}");
        }
        assert!(Status::RETRIES_EXCEEDED.to_string().contains("does not answer"));
    }
}
