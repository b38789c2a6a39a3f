//! The kernels of this room: compiled for one type and one operator when they are first needed.

use std::sync::Once;

use brigade_cuda::nvrtc::{self, Source};
use brigade_cuda::{Arg, Context, CudaError, Function, Launch, Stream};

use super::layout::THREADS;
use crate::say::warn;
use crate::{Dtype, Op};

/// What all of them are made of.
const TEXT: &str = concat!(
    include_str!("kernels/prelude.cu"),
    include_str!("kernels/element.cu"),
    include_str!("kernels/direct.cu"),
    include_str!("kernels/packets.cu"),
    include_str!("kernels/messages.cu"),
    include_str!("kernels/linked.cu"),
    include_str!("kernels/parcels.cu"),
);

const TYPES: usize = 14;
const OPERATORS: usize = 10;
/// The place of "no operator" among the options.
const MOVES: usize = OPERATORS - 1;

/// What is multiplied and added is no one operation.
const ROUNDED: &str = "--fmad=false";

/// Options for every type and operator. Products are rounded before they are added, as the host
/// does it, where the compiler would make one rounding of both: results have the host's bits, and
/// what is bound by memory is none the slower.
static OPTIONS: [[[&str; 3]; OPERATORS]; TYPES] = {
    let types = [
        "-DTYPE=0",
        "-DTYPE=1",
        "-DTYPE=2",
        "-DTYPE=3",
        "-DTYPE=4",
        "-DTYPE=5",
        "-DTYPE=6",
        "-DTYPE=7",
        "-DTYPE=8",
        "-DTYPE=9",
        "-DTYPE=10",
        "-DTYPE=11",
        "-DTYPE=12",
        "-DTYPE=13",
    ];
    let operators = [
        "-DONLY=0",
        "-DONLY=1",
        "-DONLY=2",
        "-DONLY=3",
        "-DONLY=4",
        "-DONLY=5",
        "-DONLY=6",
        "-DONLY=7",
        "-DONLY=8",
        "-DONLY=255",
    ];
    let mut options = [[[""; 3]; OPERATORS]; TYPES];
    let mut at = 0;
    while at < TYPES * OPERATORS {
        let (dtype, operator) = (at / OPERATORS, at % OPERATORS);
        options[dtype][operator] = [types[dtype], operators[operator], ROUNDED];
        at += 1;
    }
    options
};

/// A number of these sources, which have in them all that kernels of two ranks must have alike.
pub(super) fn build_number() -> u32 {
    TEXT.bytes().fold(0x811c_9dc5, |sum, byte| (sum ^ u32::from(byte)).wrapping_mul(0x0100_0193))
}

/// What kernels fold with: a type and an operator, or nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Folding {
    dtype: usize,
    operator: usize,
}

impl Folding {
    /// Bytes are only moved.
    pub(super) const NONE: Self = Self { dtype: Dtype::U8.code() as usize, operator: MOVES };

    /// Elements are folded; none for a function of the user's, which runs on the host.
    pub(super) fn by(dtype: Dtype, op: &Op) -> Option<Self> {
        let (dtype, op) = alike(dtype, op);
        Self::exactly(dtype, op)
    }

    fn exactly(dtype: Dtype, op: &Op) -> Option<Self> {
        let operator = usize::from(op.code());
        (operator < MOVES).then_some(Self { dtype: usize::from(dtype.code()), operator })
    }

    fn source(self) -> Source {
        let options = &OPTIONS[self.dtype][self.operator];
        Source { options, ..Source::new("collectives", TEXT) }
    }
}

/// The type and the operator that stand for all with the same bits, so that these are compiled
/// once: integers wrap around, so only who compares or divides asks for their sign, and truth knows
/// *or*, *and* and *exclusive or*.
fn alike(dtype: Dtype, op: &Op) -> (Dtype, &Op) {
    let dtype = match (dtype, op) {
        (_, Op::Max | Op::Min | Op::Avg) => dtype,
        (Dtype::I8, _) => Dtype::U8,
        (Dtype::I32, _) => Dtype::U32,
        (Dtype::I64, _) => Dtype::U64,
        _ => dtype,
    };
    let op = match (dtype, op) {
        (Dtype::Bool, Op::Sum | Op::Max) => &Op::Bor,
        (Dtype::Bool, Op::Prod | Op::Min) => &Op::Band,
        _ => op,
    };
    (dtype, op)
}

/// Every type with every operator that is compiled for it.
fn operators() -> impl Iterator<Item = (Dtype, Op)> {
    Dtype::ALL.into_iter().flat_map(|dtype| {
        let ops = Op::PLAIN.into_iter().chain([Op::PreMulSum(1.0)]);
        ops.filter(move |op| op.supports(dtype)).map(move |op| (dtype, op))
    })
}

/// Every source of this room, with a name for people: what a check of all kernels compiles.
pub fn sources() -> Vec<(String, Source)> {
    let folds = operators().filter_map(|(dtype, op)| {
        let folding = Folding::by(dtype, &op)?;
        let name = format!("collectives of {dtype}, {}", op.name());
        (Folding::exactly(dtype, &op) == Some(folding)).then(|| (name, folding.source()))
    });
    folds.chain([(String::from("collectives that move"), Folding::NONE.source())]).collect()
}

/// The kernels for one folding, loaded.
pub(super) struct Loaded {
    folding: Folding,
    pub(super) direct: Function,
    pub(super) packets: Function,
    pub(super) linked: Function,
    pub(super) scale: Function,
    /// With the kernels that fold nothing.
    pub(super) messages: Option<Messages>,
    /// Threads of a block.
    pub(super) threads: u32,
}

/// Two ways to carry messages.
pub(super) struct Messages {
    /// By address.
    pub(super) letters: Function,
    /// Through slots.
    pub(super) parcels: Function,
}

/// Of kernels that are not kept it is told once.
static DOUBTED: Once = Once::new();

/// All that were needed so far.
#[derive(Default)]
pub(super) struct Kernels {
    loaded: Vec<Loaded>,
}

impl Kernels {
    pub(super) fn find(&self, folding: Folding) -> Option<&Loaded> {
        self.loaded.iter().find(|loaded| loaded.folding == folding)
    }

    /// Those that fold nothing.
    pub(super) fn moving(&self) -> &Loaded {
        self.find(Folding::NONE).expect("loaded when the group was made")
    }

    /// Load them. Costs a compilation where no earlier run left one on disk. The device may wait
    /// for everything that is on it.
    pub(super) fn load(&mut self, context: &Context, folding: Folding) -> Result<(), CudaError> {
        if self.find(folding).is_some() {
            return Ok(());
        }
        DOUBTED.call_once(|| nvrtc::doubt().iter().for_each(|doubt| warn(doubt)));
        let module = nvrtc::module(context, &folding.source())?;
        let function = |name| module.function(name);
        let (direct, packets) = (function("direct")?, function("packets")?);
        let (linked, scale) = (function("linked")?, function("scale")?);
        let messages = match folding == Folding::NONE {
            true => {
                let (letters, parcels) = (function("messages")?, function("parcels")?);
                Some(Messages { letters, parcels })
            }
            false => None,
        };
        let threads = direct.threads_max()?.min(linked.threads_max()?).min(THREADS);
        self.loaded.push(Loaded { folding, direct, packets, linked, scale, messages, threads });
        Ok(())
    }
}

/// Enqueue a kernel.
///
/// # Safety
///
/// `argument` is the kernel's one parameter, and all that it names stays until the kernel is done.
pub(super) unsafe fn launch<T: Copy>(
    kernel: &Function,
    stream: &Stream,
    (blocks, threads): (u32, u32),
    argument: &T,
) -> Result<(), CudaError> {
    // SAFETY: the caller's promise.
    unsafe { kernel.launch(stream, &Launch::linear(blocks, threads), &[Arg::of(argument)]) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_folding_has_one_source() {
        let sources = sources();
        let count = |options| sources.iter().filter(|(_, it)| it.options == options).count();
        for (dtype, op) in operators() {
            let folding = Folding::by(dtype, &op).expect("no function of a user's");
            assert_eq!(count(folding.source().options), 1, "{dtype} by {}", op.name());
        }
        assert_eq!(count(Folding::NONE.source().options), 1);
        assert!(sources.iter().all(|(_, it)| it.options.contains(&ROUNDED)));
    }
}
