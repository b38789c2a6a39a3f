//! The smallest program: every rank brings a vector, every rank ends with the sum.
//!
//! `cargo build --examples && cargo run -- run -n 4 -- target/debug/examples/hello`

use brigade::{Communicator, Op};

fn main() -> Result<(), brigade::Error> {
    let comm = Communicator::from_env()?;

    let mut numbers = vec![comm.rank() as f32 + 1.0; 1000];
    comm.all_reduce(&mut numbers, Op::Sum)?;

    println!("rank {} of {}: every number is now {}", comm.rank(), comm.size(), numbers[0]);
    Ok(())
}
