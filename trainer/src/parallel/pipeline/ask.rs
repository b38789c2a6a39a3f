//! From settings to a plan: which schedule a run carries out, and what it cannot.

use super::{Fault, Kind, Order, Plan, Schedule, Shape, generate, require_order, stage_units};
use crate::args::Args;
use crate::error::Error;
use crate::intake;
use crate::parallel::{Axis, Ways};

/// The longest file of a schedule: some million actions.
const SCHEDULE_BYTES_MAX: u64 = 16 << 20;
/// Stages on each rank of an interleaved pipeline, if nobody says otherwise.
const CHUNKS: usize = 2;

impl Args {
    /// Whether units of the model are divided.
    pub(crate) fn is_pipeline(&self) -> bool {
        self.schedule.is_some() || Ways::of(&self.strategy).is_ok_and(|it| it.pipeline.is_some())
    }

    /// What the ranks of each pipeline do, if there are pipelines.
    ///
    /// Errors: `Setting` for what cannot work, `File` for a schedule that cannot be read.
    pub(crate) fn pipeline(&self, ranks: usize) -> Result<Option<Plan>, Error> {
        let stages = self.mesh(ranks).length(Axis::Pp);
        let order = Ways::of(&self.strategy)?.pipeline;
        let is_asked = order == Some(Order::Interleaved) && self.schedule.is_none();
        if self.chunks.is_some() && !is_asked {
            let problem = "are asked of --strategy interleaved only; a --schedule has its own";
            return Err(Error::setting("chunks", problem.to_string()));
        }
        if !self.is_pipeline() {
            let problem = || "pp is for pipelines: --strategy 1f1b is one".to_string();
            return if stages > 1 { Err(Error::setting("mesh", problem())) } else { Ok(None) };
        }
        // Whoever writes pp=1 means one stage.
        if ranks > 1 && self.mesh.as_ref().is_some_and(|mesh| !mesh.has(Axis::Pp)) {
            let problem = "has no pp: a pipeline wants pp=2 or more".to_string();
            return Err(Error::setting("mesh", problem));
        }
        let micros = self.share_of(0, ranks)?.slots();
        let schedule = match (&self.schedule, order) {
            (Some(path), _) => {
                let text = intake::read(path, SCHEDULE_BYTES_MAX)
                    .map_err(|error| error.of_flag("--schedule"))?;
                String::from_utf8_lossy(&text).parse()
            }
            (None, order) => {
                let order = order.expect("this is a pipeline");
                let each = order.stages_per_rank(self.chunks.unwrap_or(CHUNKS));
                // Before a schedule is made that nobody could hold.
                stage_units(self.layers, stages.saturating_mul(each), 0)?;
                generate(order, stages, each, micros)
            }
        };
        let fault = |fault: Fault| Error::setting("schedule", fault.to_string());
        let schedule: Schedule = schedule.map_err(fault)?;
        let shape = Shape::of(&schedule).map_err(fault)?;
        // Before it is completed, which takes long for a file of many actions.
        let (rows, planned) = (schedule.rows.len(), shape.micros);
        if rows != stages || planned != micros {
            let problem = format!(
                "it is for {rows} ranks and {planned} micro-batches, but a pipeline has {stages} \
                 and {micros}: see --mesh and --micro-batches or --lanes"
            );
            return Err(Error::setting("schedule", problem));
        }
        stage_units(self.layers, shape.stages(), 0)?;
        let plan = Plan::of_shape(&schedule, shape).map_err(fault)?;
        if self.ordered {
            require_order(&plan.schedule, &plan.shape).map_err(fault)?;
        }
        self.suits(&plan, ranks)?;
        Ok(Some(plan))
    }

    /// Refuse what pipelines do not go with.
    fn suits(&self, plan: &Plan, ranks: usize) -> Result<(), Error> {
        let mut rows = (0..plan.schedule.rows.len()).flat_map(|rank| plan.row(rank));
        let is_split = rows.any(|action| action.kind == Kind::Input);
        let is_divided = self.mesh(ranks).length(Axis::Tp) > 1 || self.experts > 0;
        let is_lean = self.recompute || self.offload_activations.is_some();
        if is_split && (is_lean || is_divided) {
            let problem =
                "goes with no --recompute, --offload-activations, tp or experts: backward is \
                           split"
                    .to_string();
            return Err(Error::setting("strategy", problem));
        }
        Ok(())
    }
}
