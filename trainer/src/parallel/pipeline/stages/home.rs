//! The stages of one rank as the home of a pipeline.

use super::Chunks;
use crate::error::Error;
use crate::norms::ExactSum;
use crate::offload::DiskUse;
use crate::optim::Optimizer;
use crate::parallel::pipeline::home::Home;
use crate::parallel::pipeline::pass::Pass;
use crate::parallel::pipeline::run::Stages;
use crate::parallel::{Batch, Memory};
use crate::state::State;
use std::time::Duration;

impl Home for Chunks<'_> {
    fn letter(&self) -> usize {
        self.scratch.residual.len()
    }

    fn pass<'s>(&'s mut self, batch: &'s Batch<'s>) -> Result<Box<dyn Stages + 's>, Error> {
        Ok(Box::new(Pass { chunks: self, batch }))
    }

    fn losses(&self) -> &[f64] {
        &self.losses
    }

    fn squares(&mut self, counts: &dyn Fn(usize) -> bool) -> Result<(ExactSum, Duration), Error> {
        self.mine().try_fold((ExactSum::ZERO, Duration::ZERO), |(sum, waited), chunk| {
            let squares = chunk.shards.squares(counts)?;
            Ok((sum.plus(squares), waited + chunk.shards.take_waited()))
        })
    }

    fn update(
        &mut self,
        stage: usize,
        optimizer: &mut Optimizer,
        lr: f32,
    ) -> Result<[Duration; 2], Error> {
        let chunk = self.chunks[stage].as_mut().expect("a stage of this rank");
        chunk.finish()?;
        chunk.shards.update(optimizer, lr)?;
        Ok([chunk.shards.take_waited(), chunk.take_files_waited()])
    }

    fn gather(&mut self, state: &mut State) -> Result<(), Error> {
        self.mine().try_for_each(|chunk| chunk.shards.gather(state))
    }

    fn formula_bytes(&self) -> u64 {
        self.chunks.iter().flatten().map(|chunk| chunk.formula_bytes).sum()
    }

    fn memory(&self) -> Memory {
        let mut memory = Memory {
            activations: self.bytes(),
            calls: self.model.room_bytes(),
            ..Memory::default()
        };
        for chunk in self.chunks.iter().flatten() {
            let [params, grads, moments, calls, arena] = chunk.shards.bytes();
            memory.arena += arena + chunk.inputs_bytes();
            memory.params += params;
            memory.grads += grads;
            memory.moments += moments;
            memory.calls += calls;
            memory.activations += chunk.bytes();
        }
        memory
    }

    fn disk_use(&self) -> DiskUse {
        let chunks = self.chunks.iter().flatten();
        chunks.fold(DiskUse::default(), |sum, chunk| sum.plus(chunk.disk_use()))
    }

    fn disk_formula(&self) -> DiskUse {
        let chunks = self.chunks.iter().flatten();
        chunks.fold(DiskUse::default(), |sum, chunk| sum.plus(chunk.disk_formula))
    }
}
