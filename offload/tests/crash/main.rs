//! Whatever goes wrong with a device or a process, a state is a whole generation or says what is
//! wrong.

mod cuts;
mod damage;
mod kill;
mod steps;
mod tiers;
mod trials;
mod world;
