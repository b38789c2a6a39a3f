//! What a rank does until it is told of a death: a seeded mix of calls, the same on all ranks.

use std::time::SystemTime;

use brigade_comm::{Buffers, Call, Communicator, Counts, Dtype, Error, Op};
use brigade_schedule::Collective;
use fastrand::Rng;

/// The variable with the seed of the mix.
pub(crate) const SEED: &str = "BRIGADE_TEST_MIX";
/// Set to the number of one call for the rank that makes another one in its place.
pub(crate) const MISLED: &str = "BRIGADE_TEST_MISLED";
/// Set for ranks that end without dropping anything.
pub(crate) const HASTY: &str = "BRIGADE_TEST_HASTY";
/// The exit status of a rank that was told.
pub(crate) const TOLD: i32 = 7;

/// The longest buffer.
const BYTES_MAX: usize = 4 << 20;

/// Join, call until there is an error, say it, and end the process.
pub(crate) fn run_until_told() {
    let seed = std::env::var(SEED).expect("a seed").parse().expect("a number");
    let member = Communicator::from_env().expect("a world");
    println!("rank: joined");
    let mut rng = Rng::with_seed(seed);
    let (input, mut output) = (vec![1; BYTES_MAX], vec![0; BYTES_MAX]);
    let wrong = std::env::var(MISLED).ok().map(|number| number.parse().expect("a number"));
    let error = (1_u32..).find_map(|number| {
        let step = next_step(&mut rng, member.size());
        if Some(number) == wrong {
            println!("rank: misled {}", now_ns());
            let three = Call::new(Collective::AllReduce, Dtype::I8, Op::Min, 3);
            return make(&member, &three, &input, &mut output).err();
        }
        let outcome = match step {
            Step::Call(call) => make(&member, &call, &input, &mut output),
            Step::Started(call) => start(&member, &call, &input, &mut output),
            Step::Messages => pass_around(&member, &input[..100], &mut output[..100]),
            Step::Split => halve(&member),
        };
        outcome.err()
    });
    let error = error.expect("no mix goes on for ever");
    match &error {
        Error::PeerLost { rank, .. } => println!("rank: lost {rank} {} {error}", now_ns()),
        Error::Mismatch { .. } => println!("rank: mismatch {} {error}", now_ns()),
        _ => println!("rank: error {error:?}"),
    }
    let again = member.barrier().expect_err("the communicator is of no more use");
    // On another communicator than the one that failed it was a pause.
    let what = |error: &Error| error.to_string().split(" during ").next().map(str::to_owned);
    assert_eq!(what(&again), what(&error));
    if std::env::var(HASTY).is_err() {
        drop(member);
    }
    std::process::exit(TOLD);
}

fn now_ns() -> u128 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).expect("a clock").as_nanos()
}

/// What comes next.
enum Step {
    Call(Call),
    /// The same, by the progress thread.
    Started(Call),
    /// Messages around a ring of all ranks.
    Messages,
    /// A communicator of every other rank, and a call on it.
    Split,
}

fn next_step(rng: &mut Rng, ranks: usize) -> Step {
    // As many small calls as large ones.
    let bytes = (8 << rng.u32(0..=19)) + 8 * rng.usize(0..4);
    let call = call(rng, ranks, bytes.min(BYTES_MAX));
    match rng.u8(..) {
        0..24 => Step::Messages,
        24..40 => Step::Split,
        40..72 => Step::Started(call),
        _ => Step::Call(call),
    }
}

/// The parts of the buffers that a call uses.
fn buffers<'a>(
    member: &Communicator,
    call: &Call,
    input: &'a [u8],
    output: &'a mut [u8],
) -> Buffers<'a> {
    let (ins, outs) = call.buffer_elems(member.size() as u32, member.rank() as u32);
    let size = call.dtype.size();
    Buffers::OutOfPlace { input: &input[..ins * size], output: &mut output[..outs * size] }
}

fn make(member: &Communicator, call: &Call, input: &[u8], output: &mut [u8]) -> Result<(), Error> {
    member.run(call, buffers(member, call, input, output))
}

fn start(member: &Communicator, call: &Call, input: &[u8], output: &mut [u8]) -> Result<(), Error> {
    let buffers = buffers(member, call, input, output);
    member.scope(|scope| scope.start(call.clone(), buffers)?.wait())?
}

fn halve(member: &Communicator) -> Result<(), Error> {
    let half = member.split(Some(member.rank() as u32 % 2), 0)?.expect("every rank has a colour");
    half.all_reduce(&mut [1_f32; 1000], Op::Sum)
}

fn pass_around(member: &Communicator, input: &[u8], output: &mut [u8]) -> Result<(), Error> {
    let (rank, ranks) = (member.rank(), member.size());
    let (right, left) = ((rank + 1) % ranks, (rank + ranks - 1) % ranks);
    member.messages().send(input, right).recv(output, left).run()
}

/// A call whose buffers have at most so many bytes on every rank.
fn call(rng: &mut Rng, ranks: usize, bytes: usize) -> Call {
    let root = rng.u32(..ranks as u32);
    let collective = match Collective::ALL[rng.usize(..Collective::ALL.len())] {
        Collective::Broadcast { .. } => Collective::Broadcast { root },
        Collective::Reduce { .. } => Collective::Reduce { root },
        Collective::Gather { .. } => Collective::Gather { root },
        Collective::Scatter { .. } => Collective::Scatter { root },
        other => other,
    };
    let dtype = [Dtype::F32, Dtype::U8, Dtype::F64][rng.usize(..3)];
    let elems = bytes / dtype.size();
    let count = match collective {
        Collective::AllReduce | Collective::Broadcast { .. } | Collective::Reduce { .. } => elems,
        Collective::Barrier => 0,
        _ => elems / ranks,
    };
    let call = Call::new(collective, dtype, Op::Max, count);
    let uneven = matches!(collective, Collective::AllGather | Collective::ReduceScatter);
    if !(uneven && rng.bool()) {
        return call;
    }
    let counts: Vec<usize> = (0..ranks).map(|_| rng.usize(..=count)).collect();
    Call { counts: Counts::PerRank(counts.into()), ..call }
}
