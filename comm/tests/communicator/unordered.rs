//! Functions that are not commutative, in strict order.

use std::sync::Arc;

use brigade_comm::{CustomOp, Dtype, Op, Settings};
use brigade_schedule::Collective;

use crate::world::{Case, TRANSPORTS, check, judge, over};

/// Two by two matrices of bytes, multiplied: associative, and order shows.
struct Matrices;

impl CustomOp for Matrices {
    fn name(&self) -> &str {
        "matrix-product"
    }

    fn fold(&self, arriving: &[u8], accumulator: &mut [u8], _dtype: Dtype) {
        for (a, b) in accumulator.chunks_exact_mut(4).zip(arriving.chunks_exact(4)) {
            let cell = |row: usize, column: usize| {
                let first = a[2 * row].wrapping_mul(b[column]);
                first.wrapping_add(a[2 * row + 1].wrapping_mul(b[2 + column]))
            };
            let product = [cell(0, 0), cell(0, 1), cell(1, 0), cell(1, 1)];
            a.copy_from_slice(&product);
        }
    }
}

#[test]
fn ordered_mode_keeps_the_order_of_functions_that_do_not_commute() {
    for ranks in [2, 3, 4, 5] {
        let mut cases = Vec::new();
        for collective in [
            Collective::AllReduce,
            Collective::ReduceScatter,
            Collective::Reduce { root: 0 },
            Collective::Reduce { root: ranks - 1 },
        ] {
            for in_place in [true, false] {
                let op = Op::Custom(Arc::new(Matrices));
                let (dtype, counts) = (Dtype::U32, vec![100]);
                cases.push(Case { collective, dtype, op, counts, in_place });
            }
        }
        let judged = judge(ranks, cases);
        for transport in TRANSPORTS {
            check(ranks, &Settings { ordered: true, ..over(transport) }, &judged);
        }
    }
}
