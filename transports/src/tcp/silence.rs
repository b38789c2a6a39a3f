//! When a machine counts as gone of which nothing is heard.

use std::time::Duration;

use socket2::TcpKeepalive;

/// How many times the other machine is to show itself before it counts as gone.
const PROBES: u64 = 5;
/// The kernel takes no longer pause between two of them.
const PAUSE_MAX_S: u64 = 32_767;
/// How often a kernel sends the same bytes until it gives up, at most so long apart (its
/// `tcp_retries2`), less what the first few of these take.
const RETRIES: u128 = 12;
/// The longest such pause that `TCP_RTO_MAX_MS` takes, which is what kernels begin with.
pub(super) const RETRY_CAP_MS_MAX: u32 = 120_000;

/// Probing of an idle connection, so that it ends after this silence, in whole seconds from two on.
/// A process that is merely stopped still has a kernel that answers.
pub fn keepalive(silence: Duration) -> TcpKeepalive {
    let silence_s =
        silence.as_millis().div_ceil(1000).clamp(2, (PROBES * PAUSE_MAX_S).into()) as u64;
    let pause_s = silence_s.div_ceil(PROBES);
    let count = (silence_s - pause_s).div_ceil(pause_s) as u32;
    let pause = Duration::from_secs(pause_s);
    TcpKeepalive::new().with_time(pause).with_interval(pause).with_retries(count)
}

/// The longest pause between two attempts to send the same bytes, in milliseconds, so that a
/// connection with bytes on the way ends after this silence or a little more.
pub(super) fn retry_cap_ms(silence: Duration) -> u32 {
    (silence.as_millis() / RETRIES).clamp(1000, RETRY_CAP_MS_MAX.into()) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn probes_take_as_long_as_the_silence() {
        let pauses = |pause, count| {
            let pause = Duration::from_secs(pause);
            format!(
                "{:?}",
                TcpKeepalive::new().with_time(pause).with_interval(pause).with_retries(count)
            )
        };
        let at = |millis| format!("{:?}", keepalive(Duration::from_millis(millis)));
        assert_eq!(at(0), pauses(1, 1));
        assert_eq!(at(3000), pauses(1, 2));
        assert_eq!(at(9001), pauses(2, 4), "10 s");
        assert_eq!(at(60_000), pauses(12, 4));
        assert_eq!(at(u64::MAX), pauses(PAUSE_MAX_S, 4));
        assert_eq!(retry_cap_ms(Duration::ZERO), 1000);
        assert_eq!(retry_cap_ms(Duration::from_secs(60)), 5000);
        assert_eq!(retry_cap_ms(Duration::MAX), RETRY_CAP_MS_MAX);
    }
}
