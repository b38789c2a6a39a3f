//! Folds at three sizes, out of place (`c = a + b`) and in place (`a += b`), beside a plain copy of
//! as many bytes. Throughput counts the bytes of the result.

use brigade_comm::kernels;
use brigade_comm::naive;
use brigade_comm::{Dtype, Op};
use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};

const SIZES: [usize; 3] = [4 << 10, 64 << 10, 1 << 20];

fn folds(criterion: &mut Criterion) {
    for dtype in [Dtype::F32, Dtype::Bf16, Dtype::F16, Dtype::F8e4m3, Dtype::I8] {
        let fold = kernels::fold(dtype, &Op::Sum).expect("sums of numbers exist");
        let mut group = criterion.benchmark_group(format!("sum {dtype}"));
        for bytes in SIZES {
            let count = bytes / dtype.size();
            // Finite numbers of either sign: neither NaN nor zero pages of the system.
            let mut a = naive::fill(dtype, &Op::Min, 0, 2, 1, count);
            let (b, mut c) = (naive::fill(dtype, &Op::Min, 1, 2, 1, count), vec![1u8; bytes]);
            group.throughput(Throughput::Bytes(bytes as u64));
            group.bench_function(BenchmarkId::new("c=a+b", bytes), |bencher| {
                // SAFETY: the three vectors hold `count` elements each.
                bencher.iter(|| unsafe { fold(a.as_ptr(), b.as_ptr(), c.as_mut_ptr(), count) });
            });
            group.bench_function(BenchmarkId::new("a+=b", bytes), |bencher| {
                let a = a.as_mut_ptr();
                // SAFETY: both vectors hold `count` elements; the result is the operand.
                bencher.iter(|| unsafe { fold(a, b.as_ptr(), a, count) });
            });
        }
        group.finish();
    }
}

/// Test data: `bench --check` makes as many bytes as it moves.
fn fills(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("fill");
    for dtype in [Dtype::F32, Dtype::Bf16, Dtype::F8e4m3, Dtype::I8, Dtype::I64] {
        group.throughput(Throughput::Bytes(1 << 20));
        group.bench_function(dtype.name(), |bencher| {
            bencher.iter(|| naive::fill(dtype, &Op::Sum, 1, 4, 1, (1 << 20) / dtype.size()));
        });
    }
    group.finish();
}

criterion_group!(benches, folds, fills);
criterion_main!(benches);
