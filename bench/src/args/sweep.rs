//! Flags that say among how many ranks, at which sizes and over what something is timed.

use brigade_comm::transports;

use crate::size;

/// Among how many ranks, at which sizes, over what.
#[derive(clap::Args, Clone, Debug)]
pub struct Sweep {
    /// How many ranks
    #[arg(short = 'n', long, default_value_t = 2,
          value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub ranks: u32,
    /// Smallest size in bytes, such as 64K, 1.5M or 1GiB (powers of 1024)
    #[arg(short = 'b', long, value_name = "MIN", default_value = "8", value_parser = size::parse)]
    pub min_bytes: usize,
    /// Largest size in bytes
    #[arg(short = 'e', long, value_name = "MAX", default_value = "16M", value_parser = size::parse)]
    pub max_bytes: usize,
    /// Each size is so many times the one before; the last is MAX, whether or not that hits it
    #[arg(short = 'f', long, default_value_t = 4,
          value_parser = clap::value_parser!(u32).range(2..))]
    pub factor: u32,
    /// What carries the bytes; without it, what the environment asks for.
    #[arg(long, value_name = "NAMES", help = transport_help())]
    pub transport: Option<String>,
}

impl Default for Sweep {
    /// As without a flag.
    fn default() -> Self {
        Self { ranks: 2, min_bytes: 8, max_bytes: 16 << 20, factor: 4, transport: None }
    }
}

impl Sweep {
    /// The sizes in bytes, of which the largest that is asked for is one.
    pub(crate) fn sizes(&self) -> Result<Vec<usize>, String> {
        let (least, most) = (self.min_bytes, self.max_bytes);
        if least > most {
            return Err(format!("no size is between -b {least} and -e {most}; exchange them"));
        }
        // Zero does not grow by multiplication.
        let next = |size: &usize| match size {
            0 => Some(1),
            size => size.checked_mul(self.factor as usize),
        };
        let below = std::iter::successors(Some(least), next).take_while(|size| *size < most);
        Ok(below.chain([most]).collect())
    }
}

fn transport_help() -> String {
    format!(
        "What carries the bytes: {}; cuda: buffers lie on devices, which ranks take in turn \
         (threads; processes under `brigade run`) [default: BRIGADE_TRANSPORT, or else auto]",
        accepted_of_host()
    )
}

/// What --transport takes for buffers of the host, in words.
fn accepted_of_host() -> String {
    let names = transports::NAMES.join(", ");
    format!("auto, loopback, or any of {names}, separated by commas, best first")
}

/// What --transport takes, in words.
pub(crate) fn accepted() -> String {
    format!("there are {}; or cuda", accepted_of_host())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_end_at_the_largest() {
        let sizes = |min_bytes, max_bytes, factor| {
            Sweep { min_bytes, max_bytes, factor, ..Sweep::default() }.sizes()
        };
        assert_eq!(sizes(1, 4 << 20, 4).unwrap().len(), 12);
        assert_eq!(Sweep::default().sizes().unwrap()[10..], [8 << 20, 16 << 20]);
        assert_eq!(sizes(0, 8, 4).unwrap(), [0, 1, 4, 8]);
        assert_eq!(sizes(usize::MAX, usize::MAX, 2).unwrap(), [usize::MAX]);
        assert!(sizes(8, 4, 2).unwrap_err().contains("-b 8 and -e 4"));
    }

    #[test]
    fn the_help_names_every_transport() {
        for name in transports::NAMES {
            assert!(transport_help().contains(name), "{name}");
        }
    }
}
